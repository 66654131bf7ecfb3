"""The command line of opsq as plain records, walked once from the typer app; man pages and completions are made from them.

It must not know how a page or a script looks.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

from opsq.cli.app import GROUPS, VERBS, build
from opsq.cli.options.table import GLOBAL
from opsq.cli.verbs.submissions import STATES
from opsq.settings import SETTINGS, Setting
from opsq.units import format_duration, format_size


class Values(NamedTuple):
    """What may stand where a value is asked for.

    Attributes:
        metavar: what help calls it; "" for a flag.
        kind: file, dir, command, words, verb, pair (KEY=), a kind of `opsq completion`, or "" if nothing can be offered.
        words: what there is to choose from, for the kind words.
    """

    metavar: str
    kind: str = ""
    words: tuple[str, ...] = ()


class Flag(NamedTuple):
    """An option of a verb; its long form comes last, as manuals have it."""

    names: tuple[str, ...]
    help: str
    values: Values
    is_multiple: bool
    default: str
    variable: str

    @property
    def takes_value(self) -> bool:
        """Whether a value follows; one that may be left out does not."""
        return bool(self.values.metavar) and not self.values.metavar.startswith("[")


class Argument(NamedTuple):
    """What stands behind a verb without being an option; only the last may be many."""

    values: Values
    help: str
    is_many: bool
    is_optional: bool


class Command(NamedTuple):
    """A verb; `name` is two words for the verbs of a group."""

    name: str
    panel: str
    help: str
    flags: tuple[Flag, ...]
    arguments: tuple[Argument, ...]

    @property
    def runs_program(self) -> bool:
        """Whether another command line follows."""
        return any(argument.values.kind == "command" for argument in self.arguments)

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return " ".join(self.help.partition("\n\n")[0].split())


class CommandLine(NamedTuple):
    """All that there is to type.

    Attributes:
        commands: in the order of `opsq --help`; the verbs of a group each for itself.
        flags: what may stand in front of every verb and behind it.
        groups: the help of each verb that has verbs of its own.
    """

    commands: tuple[Command, ...]
    flags: tuple[Flag, ...]
    groups: dict[str, str]

    @property
    def verbs(self) -> dict[str, str]:
        """What may stand first, with what it does."""
        names = dict.fromkeys(command.name.partition(" ")[0] for command in self.commands)
        return {name: self.groups.get(name) or self.members(name)[0].summary for name in names}

    def members(self, name: str) -> list[Command]:
        """The verbs of a verb; itself alone if it has none."""
        return [command for command in self.commands if command.name == name or command.name.startswith(name + " ")]


def read() -> CommandLine:
    """Walk the typer app."""
    app: Any = typer.main.get_command(build())
    found: list[Command] = []
    groups: dict[str, str] = {}
    for name in VERBS:
        verb = app.commands[name]
        if name in GROUPS:
            groups[name] = verb.help
            found += [_command(f"{name} {part}", VERBS[name].panel, verb.commands[part]) for part in GROUPS[name]]
        else:
            found.append(_command(name, VERBS[name].panel, verb))
    shown = {param.name: param for param in app.params}
    flags = (
        *(_flag("", shown[option.name]) for option in GLOBAL),
        _flag("", shown["version"]),
        Flag(("--help",), "Print help and exit; also behind a verb.", Values(""), False, "", ""),
    )
    return CommandLine(tuple(found), flags, groups)


def setting_values(setting: Setting) -> Values:
    """What a setting takes."""
    choices = inspect.getclosurevars(setting.kind.read).nonlocals.get("choices")
    if isinstance(choices, tuple):
        return Values("WORD", "words", choices)
    if isinstance(setting.default, bool):
        return Values("")
    if setting.kind.write is format_duration:
        return Values("D")
    if setting.kind.write is format_size:
        return Values("SIZE")
    if setting.name.endswith("_mode"):
        return Values("MODE")
    if setting.name.endswith("_dir"):
        return Values("DIR", "dir")
    if setting.name.endswith("_file") or setting.name == "socket":
        return Values("FILE", "file")
    if setting.name == "store":
        return Values("URL", "dir")
    if isinstance(setting.default, str):
        return Values("HOST:PORT")
    return Values("N")


# --- inside -----------------------------------------------------------------------------------------------------------------------

_BY_METAVAR = {
    "FILE": "file",
    "FILE|-": "file",
    "PATH": "file",
    "DIR": "dir",
    "KEY=VALUE": "pair",
    "KEY": "keys",
    "KEY[=VALUE]": "keys",
    "CMD": "command",
    "INPUT": "file",
}
_BY_PLACE = {
    ("submit", "--unique"): "",
    ("list", "--before"): "ids",
    ("release", "--consumer"): "consumers",
    ("cancel", "ID"): "open",
    ("rm", "ID"): "ended",
    ("wait", "ID"): "open",
    **{(verb, "ID"): "ids" for verb in ("results", "show", "dead list", "dead requeue")},
}
_SETTINGS = {setting.flag: setting for setting in SETTINGS}


def _command(name: str, panel: str, verb: Any) -> Command:
    globals_ = {option.name for option in GLOBAL}
    options = [param for param in verb.params if param.param_type_name == "option" and param.name not in globals_]
    arguments = [param for param in verb.params if param.param_type_name == "argument"]
    return Command(
        name,
        panel,
        inspect.cleandoc(verb.help),
        tuple(_flag(name, param) for param in options),
        tuple(argument for param in arguments for argument in _arguments(name, param)),
    )


def _arguments(verb: str, param: Any) -> list[Argument]:
    """An argument; two where one takes a command line behind what else is given."""
    text, is_many = " ".join((param.help or "").split()), param.nargs != 1
    if " -- " not in str(param.metavar):
        return [Argument(_values(verb, str(param.metavar), param), text, is_many, not param.required)]
    first, command = (Values(metavar, _BY_METAVAR[metavar]) for metavar in param.metavar.split(" -- "))
    return [Argument(first, text, is_many, is_optional=False), Argument(command, "", is_many, is_optional=False)]


def _flag(verb: str, param: Any) -> Flag:
    names = tuple(sorted(param.opts, key=len))
    setting = _SETTINGS.get(names[-1]) if verb in {"start", "restart"} else None
    if param.is_flag:
        values = Values("")
    elif setting is not None:
        values = setting_values(setting)
    else:
        values = _values(verb, names[-1], param)
    default = "" if param.default in (None, False, "", 0.0) or param.is_flag else f"{param.default}"
    if setting is not None and not default and setting.default not in ("", False):
        default = setting.kind.write(setting.default)
    return Flag(names, " ".join(param.help.split()), values, bool(param.multiple), default, param.envvar or "")


def _values(verb: str, place: str, param: Any) -> Values:
    choices: Sequence[str] | None = getattr(param.type, "choices", None)
    metavar = param.metavar or ("|".join(choices) if choices else param.type.name.upper())
    if choices:
        return Values(metavar, "words", tuple(choices))
    if metavar.startswith("STRATEGY"):
        return Values(metavar, "explained" if metavar.endswith("|ID") else "strategies")
    if metavar == "STATE":
        return Values(metavar, "words", STATES)
    return Values(metavar, _BY_PLACE.get((verb, place), _BY_METAVAR.get(metavar, "")))
