"""The typer app: which verbs there are, where each lives, and how a command line reaches one.

It must not know what a verb does. Only the verb that is asked for is imported and declared; `build()` declares all, for help and for
the generator of man pages and completions.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer
from typer._click.core import ParameterSource
from typer._click.exceptions import ClickException
from typer.exceptions import Abort, Exit
from typer.models import OptionInfo

from opsq.cli.options.option_errors import worded
from opsq.cli.options.table import GLOBAL, HOT, Option, Verb, split_verb
from opsq.errors import UsageError
from opsq.settings import SETTINGS
from opsq.version import __version__

HELP = """A durable batch-work queue: submit a large input as chunks, run any program on each, get the results in input order.

Every verb takes --json, which prints a JSON document on stdout, also on failure. Work is done at least once: a chunk whose consumer is
lost is handed out again; a completion that was acknowledged never is.
"""


class Place(NamedTuple):
    """Where a verb is: its function has the name of the verb, with `_` for `-`, in a module of opsq.cli.verbs; and how its help begins."""

    module: str
    panel: str
    summary: str


def _short(help_text: str) -> str:
    """The first statement of a help text: what fits a line of the list of verbs."""
    return re.split(r"[.:;](?:\s|$)", help_text, maxsplit=1)[0] + "."


_DAEMON, _PRODUCE, _CONSUME, _RULE, _LOOK = "Daemon", "Producing", "Consuming", "Administration", "Inspection"

VERBS: dict[str, Place] = {
    "start": Place("daemon", _DAEMON, "Start the daemon and return when it is ready."),
    "stop": Place("daemon", _DAEMON, "Stop the daemon."),
    "restart": Place("daemon", _DAEMON, "Stop the daemon, if one runs, and start it again."),
    "status": Place("status", _DAEMON, "Show what the daemon is doing."),
    "submit": Place("submit", _PRODUCE, "Submit files or stdin as chunks."),
    "wait": Place("wait", _PRODUCE, "Wait until submissions have ended."),
    "results": Place("results", _PRODUCE, "Write the results of a submission to stdout, in chunk order."),
    "show": Place("submissions", _PRODUCE, "Show one submission."),
    "list": Place("submissions", _PRODUCE, "List submissions, newest first."),
    "cancel": Place("submissions", _PRODUCE, "Cancel submissions."),
    "rm": Place("submissions", _PRODUCE, "Forget finished submissions, with their results and content."),
    "dead": Place(
        "dead", _PRODUCE, "List dead chunks, show all that is known of one, give them new attempts, or give them up."
    ),
    "history": Place(
        "history", _LOOK, "List what has happened to chunks, write it to files for other programs, or forget it."
    ),
    "run": Place(
        "run", _CONSUME, "Run a program on each chunk of the inputs, and write the results to stdout in input order."
    ),
    "consume": Place("consume", _CONSUME, "Run a program for each chunk."),
    **{name: Place("hot", _CONSUME, _short(verb.help)) for name, verb in HOT.items()},
    "spark": Place("spark", _CONSUME, "Move data with PySpark, and work chunks off on its executors."),
    "pause": Place("rules", _RULE, "Hand out nothing more of some submissions, until resume."),
    "resume": Place("rules", _RULE, "End a pause, named by the same pairs."),
    "limit": Place(
        "rules", _RULE, "Bound how many chunks of a value are reserved at once, or how many start in a time."
    ),
    "limits": Place("rules", _RULE, "List pauses, limits and weights."),
    "weight": Place("rules", _RULE, "Give a value of a key a weight in Fair."),
    "explain": Place("explain", _LOOK, "Show how a strategy is served."),
    "config": Place("upkeep", _LOOK, "Print every setting."),
    "doctor": Place("upkeep", _LOOK, "Look for what is wrong on this machine, and say what to do."),
    "check": Place("upkeep", _LOOK, "Check the database and what must always hold."),
    "backup": Place("upkeep", _LOOK, "Copy the database to a file, also while work goes on."),
    "vacuum": Place("upkeep", _LOOK, "Give free pages of the database back to the file system."),
    "demo": Place("demo", _LOOK, "Show it all at work."),
    "completion": Place("completion", _LOOK, "Print the completion script of a shell."),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "dead": ("list", "show", "requeue", "drop"),
    "history": ("list", "export", "prune"),
    "spark": ("doctor", "submit", "consume", "results", "run", "report"),
}
"""Verbs that have verbs of their own; the first is meant when none is given."""

OPTIONAL_VALUES = {"--wait-for-room": "forever"}
"""Options whose value may be left out, which typer does not know: what is meant then. A value stands behind `=`."""

OTHERS_SAY = {
    "ack": "complete",
    "add": "submit",
    "ctl": "status",
    "del": "rm",
    "delete": "rm",
    "done": "complete",
    "enqueue": "submit",
    "get": "reserve",
    "help": "--help",
    "info": "show",
    "kill": "cancel",
    "ls": "list",
    "nack": "fail",
    "output": "results",
    "pop": "reserve",
    "ps": "status",
    "push": "submit",
    "put": "submit",
    "remove": "rm",
    "requeue": "dead requeue",
    "retry": "dead requeue",
    "stats": "status",
    "top": "status --watch",
    "touch": "extend",
    "version": "--version",
    "work": "consume",
    "worker": "consume",
}
"""What other tools call our verbs."""


def run(words: Sequence[str]) -> int:
    """Run a command line whose global options stand behind the verb.

    Returns:
        The exit status.
    """
    words = _with_values(words)
    name = words[0] if words and not words[0].startswith("-") else ""
    if (name or words == [""]) and name not in VERBS:
        raise _unknown(name)
    if name in GROUPS and words[1:] not in (["--help"], ["-h"]):
        words = _with_part(name, words[1:])
    # Click takes one away, but what stands on which side of it matters.
    if (words[:1] == ["run"] or words[:2] == ["spark", "run"]) and "--" in words:
        words.insert(words.index("--"), "--")
    command = typer.main.get_command(build([name]) if name else listing())
    try:
        with command.make_context("opsq", words) as context:
            gc.enable()
            command.invoke(context)
    except ClickException as error:
        raise UsageError(worded(error), hint=f"`opsq {name + ' ' if name else ''}--help` explains it.") from error
    except Exit as error:
        return error.exit_code
    except Abort as error:
        raise KeyboardInterrupt from error
    return 0


def _with_values(words: Sequence[str]) -> list[str]:
    """A command line in which each option has its value; behind `--` nothing is an option."""
    end = words.index("--") if "--" in words else len(words)
    return [
        f"{word}={OPTIONAL_VALUES[word]}" if at < end and word in OPTIONAL_VALUES else word
        for at, word in enumerate(words)
    ]


def _with_part(name: str, words: list[str]) -> list[str]:
    """The command line of a verb that has verbs of its own, with that one named, and the global options behind it."""
    part, rest = split_verb(words)
    if part and part[0] in GROUPS[name]:
        return [name, *part, *rest]
    return [name, GROUPS[name][0], *words]


def _empty() -> typer.Typer:
    """The app without verbs."""
    app = typer.Typer(
        name="opsq",
        help=HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        rich_markup_mode="rich" if sys.stdout is not None and sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_global())
    return app


def listing() -> typer.Typer:
    """The app as `opsq --help` lists it: with every verb, of which it imports none and knows only how its help begins."""
    app = _empty()
    for name, place in VERBS.items():
        app.command(name, short_help=place.summary, rich_help_panel=place.panel)(lambda: None)
    return app


def build(names: Iterable[str] = tuple(VERBS)) -> typer.Typer:
    """The app with these verbs."""
    app = _empty()
    for name in names:
        place = VERBS[name]
        if name in HOT:
            verb = HOT[name]
            app.command(name, help=verb.help, short_help=place.summary, rich_help_panel=place.panel)(_hot(verb))
            continue
        module = import_module(f"opsq.cli.verbs.{place.module}")
        if name in GROUPS:
            group = typer.Typer(help=inspect.getdoc(module), rich_markup_mode=app.rich_markup_mode)
            group.callback()(lambda: None)
            for part in GROUPS[name]:
                function = getattr(module, f"{name}_{part}")
                group.command(part, short_help=_short(function.__doc__))(_verb(function, f"{name} {part}"))
            app.add_typer(group, name=name, help=place.summary, rich_help_panel=place.panel)
        else:
            function = getattr(module, name if name != "list" else "list_")
            app.command(name, short_help=place.summary, rich_help_panel=place.panel)(_verb(function, name))
    return app


def _global() -> Callable[..., None]:
    """What typer shows of the options in front of a verb; `split_verb` has moved them behind it."""

    def command(context: typer.Context, version: bool, **_: object) -> None:
        if version:
            sys.stdout.write(f"opsq {__version__}\n")
            raise Exit
        if context.invoked_subcommand is None:
            raise UsageError(
                "No verb was given.", hint="`opsq --help` lists the verbs; `opsq demo` shows it all at work."
            )

    mark = typer.Option("--version", help="Print the version and exit.")
    version = inspect.Parameter(
        "version", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[bool, mark], default=False
    )
    command.__doc__ = HELP
    return _with_parameters(command, [version, *(_declare(option, "") for option in GLOBAL)])


def _verb(function: Callable[..., None], name: str) -> Callable[..., None]:
    """What typer calls for a verb: takes the options of `function` and the global ones, and hands over a `Caller` for the latter.

    A parameter that is a named tuple stands for its fields.
    """
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "caller" and p.kind is not p.VAR_KEYWORD]
    if any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        own += [_declare(option, name) for option in _setting_options()]
    groups = {p.name: p.annotation for p in own if hasattr(p.annotation, "_fields")}
    own = [_with_variable(part, name) for p in own for part in (_fields(groups[p.name]) if p.name in groups else [p])]

    def command(context: typer.Context, **values: Any) -> None:
        from opsq.cli.caller import Caller

        options = {option.name: values.pop(option.name) for option in GLOBAL}
        for group, kind in groups.items():
            values[group] = kind(**{field: values.pop(field) for field in kind._fields})
        function(Caller(options, _by_flag(context)), **values)

    command.__doc__ = function.__doc__
    command.__name__ = function.__name__
    return _with_parameters(command, [*own, *(_declare(option, name) for option in GLOBAL)])


def _fields(kind: Any) -> list[inspect.Parameter]:
    """The fields of a named tuple as options: what several verbs share is declared as one."""
    hints = get_type_hints(kind, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, keyword, annotation=hints[name], default=kind._field_defaults[name])
        for name in kind._fields
    ]


def _with_variable(parameter: inspect.Parameter, verb: str) -> inspect.Parameter:
    """An option with its environment twin; a declaration that several verbs share stays as it is."""
    marks = [copy(mark) for mark in getattr(parameter.annotation, "__metadata__", ())]
    for mark in marks:
        if isinstance(mark, OptionInfo) and not mark.envvar:
            mark.envvar = Option((_long_form(mark, parameter.name),), "").variable(verb)
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, *marks]) if marks else parameter


def _hot(verb: Verb) -> Callable[..., None]:
    """What typer shows of a hot verb. Only --help comes this way; the verb itself is answered before typer is loaded."""

    def command(**_: object) -> None:
        """Nothing."""

    own = []
    if verb.argument:
        kind: Any = list[str] if verb.is_many else str
        mark = typer.Argument(metavar=verb.argument, help=verb.argument_help)
        default = None if verb.is_optional else inspect.Parameter.empty
        annotation: Any = Annotated[kind | None if verb.is_optional else kind, mark]
        own.append(
            inspect.Parameter("arguments", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        )
    return _with_parameters(command, [*own, *(_declare(option, verb.name) for option in (*verb.options, *GLOBAL))])


def _with_parameters(function: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """`function`, which takes anything, with the signature that typer is to see."""
    own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    shown = [
        *(p for p in own if p.annotation is typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters),
    ]
    function.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # inspect reads it; functions may have it
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return function


def _declare(option: Option, verb: str) -> inspect.Parameter:
    """An option of the table as typer declares it; durations come as text and are read by the table's own parser."""
    kinds: dict[str, Any] = {"flag": bool, "count": int, "text": str, "duration": str}
    kind = kinds[option.kind]
    mark = typer.Option(
        *option.flags,
        help=option.help,
        envvar=option.variable(verb),
        metavar=option.metavar or None,
        min=1 if kind is int else None,
    )
    annotation: Any = Annotated[kind if option.default is not None else kind | None, mark]
    default = str(option.default) if option.kind == "duration" and option.default is not None else option.default
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _setting_options() -> list[Option]:
    """Every setting of the daemon as an option, but for those that are global options."""
    known = {option.name for option in GLOBAL}
    return [
        Option(
            (setting.flag,),
            setting.text[0].upper() + setting.text[1:] + ".",
            "flag" if isinstance(setting.default, bool) else "text",
            default=False if isinstance(setting.default, bool) else None,
            environment=setting.variable,
        )
        for setting in SETTINGS
        if setting.name not in known
    ]


def _long_form(mark: OptionInfo, name: str) -> str:
    flags = [
        flag for flag in (mark.default, *(mark.param_decls or ())) if isinstance(flag, str) and flag.startswith("--")
    ]
    return flags[0] if flags else name


def _by_flag(context: typer.Context) -> frozenset[str]:
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    ours = OTHERS_SAY.get(name) or next(iter(get_close_matches(name, VERBS, 1)), None)
    hint = f"It is called `opsq {ours}` here." if ours else "`opsq --help` lists the verbs."
    return UsageError(f"opsq has no verb {name!r}.", hint=hint)
