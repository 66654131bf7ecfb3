"""The command line of opsq as plain records, read from what the verbs declare.

Man pages and completions are made from them.

It must not know how a page or a script looks.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

from opsq.cli.verb_table import GROUPS, VERBS, VERSION, function_of
from opsq.options.option import GLOBAL, OneOf, Option, declared


class Values(NamedTuple):
    """What may stand where a value is asked for.

    Attributes:
        metavar: what help calls it; "" for a flag.
        kind: file, dir, command, words, verb, pair (KEY=), a kind of `opsq completion`, or "" if nothing can be
            offered.
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
    """Read the declarations of every verb."""
    found: list[Command] = []
    groups = {name: VERBS[name].summary for name in GROUPS}
    for name, place in VERBS.items():
        verbs = [f"{name} {part}" for part in GROUPS[name]] if name in GROUPS else [name]
        found += [_command(verb, place.panel) for verb in verbs]
    flags = (
        *(_flag("", option) for option in GLOBAL.values()),
        _flag("", VERSION)._replace(variable=""),
        Flag(("--help",), "Print help and exit; also after a verb.", Values(""), False, "", ""),
    )
    return CommandLine(tuple(found), flags, groups)


# --- inside -----------------------------------------------------------------------------------------------------------

_BY_METAVAR = {
    "FILE": "file",
    "FILE|-": "file",
    "PATH": "file",
    "DIR": "dir",
    "KEY=VALUE": "pair",
    "KEY": "keys",
    "KEY[=VALUE]": "keys",
    "COMMAND": "command",
    "INPUT": "file",
    "STRATEGY": "strategies",
    "STRATEGY|ID": "explained",
}
_BY_PLACE = {
    ("submit", "--unique"): "",
    ("examples", "NAME"): "examples",
    ("run", "--resume"): "",
    **{(verb, "--idempotency-key"): "" for verb in ("submit", "run", "spark submit", "spark run")},
    ("list", "--before"): "ids",
    ("release", "--consumer"): "consumers",
    ("cancel", "ID"): "open",
    ("rm", "ID"): "ended",
    ("wait", "ID"): "open",
    **{(verb, "ID"): "ids" for verb in ("results", "show", "dead list", "dead requeue")},
    **{(verb, "--store"): "dir" for verb in ("start", "restart")},
}


def _command(name: str, panel: str) -> Command:
    function = function_of(name)
    options = [option for each, option in declared(function).options.items() if each not in GLOBAL]
    return Command(
        name,
        panel,
        inspect.getdoc(function) or "",
        tuple(_flag(name, option) for option in options if option.flags),
        tuple(argument for option in options if not option.flags for argument in _arguments(name, option)),
    )


def _arguments(verb: str, option: Option) -> list[Argument]:
    """An argument; two where one takes a command line behind what else is given."""
    if " -- " not in option.metavar:
        return [Argument(_values(verb, option.metavar, option), option.help, option.is_many, option.is_optional)]
    first, command = (Values(metavar, _BY_METAVAR[metavar]) for metavar in option.metavar.split(" -- "))
    return [
        Argument(first, option.help, option.is_many, is_optional=False),
        Argument(command, "", option.is_many, is_optional=False),
    ]


def _flag(verb: str, option: Option) -> Flag:
    long_form = option.flags[-1]
    values = Values("") if option.is_flag else _values(verb, long_form, option)
    return Flag(option.flags, option.help, values, option.is_many, option.default_text, option.variable(verb))


def _values(verb: str, place: str, option: Option) -> Values:
    if isinstance(option.read, OneOf):
        return Values(option.metavar, "words", option.read.words)
    return Values(option.metavar, _BY_PLACE.get((verb, place), _BY_METAVAR.get(option.metavar, "")))
