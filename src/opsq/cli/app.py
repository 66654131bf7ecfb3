"""The typer app: which verbs there are, and how a command line reaches one.

It must not know what a verb does. Only the verb that is asked for is imported; typer's commands are made from what the
verbs declare, in the form of `options.option`.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from copy import copy
from importlib import import_module
from typing import Any, Literal, NamedTuple

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import Abort, Exit, TyperException

from opsq.errors import UsageError
from opsq.options.command_line import split_verb
from opsq.options.option import GLOBAL, OneOf, Option, boolean, declared, option
from opsq.version import __version__

HELP = """\
A durable batch-work queue: submit a large input as chunks, run any program on each, get the results in input order.

Every verb takes --json, which prints a JSON document on stdout, also on failure. Work is done at least once: a chunk
whose consumer is lost is handed out again; a completion that was acknowledged never is.
"""

VERSION = option("--version", "Print the version and exit.")


class Place(NamedTuple):
    """Where `opsq --help` lists a verb, and how its help begins.

    The verb itself is the function of its name in the module of its name.
    """

    panel: str
    summary: str


_DAEMON, _PRODUCE, _CONSUME = "Daemon", "Producing", "Consuming"
_INSPECT, _ADMINISTER, _BEGIN = "Inspection", "Administration", "Getting started"

VERBS: dict[str, Place] = {
    "start": Place(_DAEMON, "Start the daemon and return when it is ready."),
    "stop": Place(_DAEMON, "Stop the daemon."),
    "restart": Place(_DAEMON, "Stop the daemon, if one runs, and start it again."),
    "status": Place(_DAEMON, "Show what the daemon is doing."),
    "top": Place(_DAEMON, "Follow the queue on one screen."),
    "metrics": Place(_DAEMON, "Print metrics of the daemon once, as Prometheus reads them."),
    "gateway": Place(_DAEMON, "Serve HTTP in front of the daemon."),
    "submit": Place(_PRODUCE, "Submit files or stdin as chunks."),
    "wait": Place(_PRODUCE, "Wait until submissions have ended."),
    "results": Place(_PRODUCE, "Write the results of a submission to stdout, in chunk order."),
    "show": Place(_PRODUCE, "Show one submission."),
    "list": Place(_PRODUCE, "List submissions, newest first."),
    "cancel": Place(_PRODUCE, "Cancel submissions."),
    "rm": Place(_PRODUCE, "Remove finished submissions, with their results and content."),
    "outbox": Place(_PRODUCE, "Print the tables of an outbox, through which work commits with your own transactions."),
    "relay": Place(_PRODUCE, "Hand the rows of an outbox over to the daemon."),
    "dead": Place(_PRODUCE, "List dead chunks, show everything about one, give them new attempts, or give up on them."),
    "run": Place(
        _CONSUME, "Run a program on each chunk of the inputs, and write the results to stdout in input order."
    ),
    "consume": Place(_CONSUME, "Run a program for each chunk."),
    "reserve": Place(_CONSUME, "Reserve chunks as leases."),
    "read": Place(_CONSUME, "Write the bytes of a reserved chunk to stdout."),
    "complete": Place(_CONSUME, "Complete reserved chunks."),
    "fail": Place(_CONSUME, "Report failed attempts."),
    "release": Place(_CONSUME, "Release reserved chunks without counting an attempt."),
    "extend": Place(_CONSUME, "Move the deadline of reserved chunks to a full lease from now."),
    "spark": Place(_CONSUME, "Move data with PySpark, and process chunks on its executors."),
    "history": Place(_INSPECT, "List the history of chunks, export it to files for other programs, or delete it."),
    "events": Place(_INSPECT, "Print what has happened, oldest first."),
    "notify": Place(
        _INSPECT, "Run programs and call webhooks for events; list, retry or drop deliveries that were given up."
    ),
    "explain": Place(_INSPECT, "Show how a strategy is served."),
    "pause": Place(_ADMINISTER, "Stop handing out some submissions until they are resumed."),
    "resume": Place(_ADMINISTER, "End a pause, named by the same pairs."),
    "limit": Place(_ADMINISTER, "Limit concurrent chunks per value, or how many start per unit of time."),
    "limits": Place(_ADMINISTER, "List pauses, limits and weights."),
    "weight": Place(_ADMINISTER, "Set the weight in Fair of a value of a key."),
    "audit": Place(_ADMINISTER, "List administrative acts, newest first."),
    "schedule": Place(_PRODUCE, "List, add, edit, show, pause, resume, trigger, backfill or remove schedules."),
    "queue": Place(_ADMINISTER, "List, create, show or remove the queues of records that a gateway serves."),
    "token": Place(_ADMINISTER, "List, create or revoke the tokens of TCP clients."),
    "config": Place(_ADMINISTER, "Print every setting."),
    "doctor": Place(_ADMINISTER, "Look for problems on this machine, and say what to do about each."),
    "check": Place(_ADMINISTER, "Check the database and its invariants, also while no daemon runs."),
    "backup": Place(_ADMINISTER, "Copy the database to a file, also while work continues."),
    "vacuum": Place(_ADMINISTER, "Return unused pages of the database to the file system."),
    "demo": Place(_BEGIN, "Run a demonstration."),
    "examples": Place(_BEGIN, "List the examples, print one, or copy some to a folder."),
    "completion": Place(_BEGIN, "Print the completion script for a shell."),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "dead": ("list", "show", "requeue", "drop"),
    "history": ("list", "export", "prune"),
    "schedule": ("list", "add", "edit", "show", "pause", "resume", "trigger", "backfill", "rm"),
    "notify": ("run", "dead", "retry", "drop"),
    "queue": ("list", "create", "show", "rm"),
    "outbox": ("ddl",),
    "token": ("list", "create", "revoke"),
    "spark": ("doctor", "submit", "consume", "results", "run", "report"),
}
"""Verbs that have verbs of their own; the first is meant when none is given."""

OPTIONAL_VALUES = {"--wait-for-room": "forever", "--pause-on-failure": "yes"}
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
    "ps": "top",
    "push": "submit",
    "put": "submit",
    "remove": "rm",
    "retry": "dead requeue",
    "stats": "status",
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
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name and name not in VERBS:
        raise _unknown(name)
    if name in GROUPS and words not in (["--help"], ["-h"]):
        name, words = _with_part(name, words)
    # Click takes one away, but what stands on which side of it matters.
    if name in {"run", "spark run"} and "--" in words:
        words.insert(words.index("--"), "--")
    try:
        if name and name not in GROUPS:
            _call(name, words)
        else:
            _list(name, words)
    except TyperException as error:
        raise UsageError(error.format_message(), hint=_help_hint(name)) from error
    except Exit as error:
        return error.exit_code
    except Abort as error:
        raise KeyboardInterrupt from error
    return 0


def function_of(name: str) -> Callable[..., None]:
    """The function of a verb: in the module of its name, in the package of its group if it has one."""
    module = import_module(f"opsq.cli.verbs.{name.replace(' ', '.')}")
    part = name.rpartition(" ")[2]
    found: Callable[..., None] = getattr(module, "list_" if part == "list" else part)  # not to hide the type
    return found


def command(name: str) -> TyperCommand:
    """A verb as typer sees it, made from its declarations."""
    function = function_of(name)
    return TyperCommand(
        name,
        params=[_parameter(each, option, name) for each, option in declared(function).options.items()],
        help=inspect.getdoc(function),
        rich_markup_mode=_markup_mode(),
        context_settings=_HELP_OPTIONS,
    )


def read(name: str, words: list[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The value of each option and argument of a verb, and those that stood on the command line itself.

    Raises:
        UsageError: a value is not one that the option takes.
        TyperException: the command line is wrong in another way.
    """
    options = declared(function_of(name)).options
    for flag in filter(lambda each: each.is_flag, options.values()):
        boolean(flag.variable(name), os.environ.get(flag.variable(name), ""))
    with command(name).make_context(f"opsq {name}", words) as context:
        sources = {each: str(getattr(context.get_parameter_source(each), "name", "")) for each in options}
    try:
        values = {
            each: _value(option, context.params[each], option.variable(name) if sources[each] == "ENVIRONMENT" else "")
            if sources[each] in {"COMMANDLINE", "ENVIRONMENT"}
            else option.default
            for each, option in options.items()
        }
    except UsageError as error:
        error.hint = error.hint or _help_hint(name)
        raise
    return values, frozenset(each for each, source in sources.items() if source == "COMMANDLINE")


def listing(group: str = "") -> TyperGroup:
    """All verbs as `opsq --help` lists them, of which none is imported; or the verbs of a group."""
    if group:
        summaries = {part: _short(inspect.getdoc(function_of(f"{group} {part}"))) for part in GROUPS[group]}
        commands: dict[str, Any] = {part: TyperCommand(part, short_help=text) for part, text in summaries.items()}
        params, help_text = [], VERBS[group].summary
    else:
        commands = {
            name: TyperCommand(name, short_help=place.summary, rich_help_panel=place.panel)
            for name, place in VERBS.items()
        }
        params = [_parameter(name, option, "") for name, option in {"version": VERSION, **GLOBAL}.items()]
        help_text = HELP
    return TyperGroup(
        name=group or "opsq",
        commands=commands,
        params=params,
        help=help_text,
        rich_markup_mode=_markup_mode(),
        context_settings=_HELP_OPTIONS,
    )


# --- inside -----------------------------------------------------------------------------------------------------------

_HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}


def _call(name: str, words: list[str]) -> None:
    """Read the command line of a verb, and call the verb."""
    from opsq.cli.caller import Caller

    values, by_flag = read(name, words)
    gc.enable()
    function = function_of(name)
    function(Caller(values, by_flag), **declared(function).parameters(values))


def _value(option: Option, given: Any, variable: str) -> Any:
    """The value of an option that was given: in a variable, or on the command line."""
    if option.is_flag:
        return given
    origin = variable or (option.flags[-1] if option.flags else option.metavar)
    return [option.read(origin, each) for each in given] if option.is_many else option.read(origin, given)


def _list(group: str, words: list[str]) -> None:
    """Answer a command line without a verb."""
    with listing(group).make_context(f"opsq {group}".rstrip(), words) as context:
        if not context.params["version"]:
            raise UsageError("No verb was given.", hint="`opsq --help` lists the verbs; `opsq demo` demonstrates them.")
    sys.stdout.write(f"opsq {__version__}\n")


def _parameter(name: str, option: Option, verb: str) -> TyperOption | TyperArgument:
    """An option or argument as typer declares it; its value stays text, for the reader of the option."""
    metavar = f"<{option.metavar}>" if isinstance(option.read, OneOf) and option.metavar.islower() else option.metavar
    shown = option.default_text or None
    if not option.flags:
        return _Argument(
            option.usage,
            param_decls=[name],
            type=str,
            required=not option.is_optional,
            default=shown,
            nargs=-1 if option.is_many else 1,
            metavar=metavar,
            help=option.help,
        )
    return TyperOption(
        param_decls=[name, *option.flags],
        type=None if option.is_flag else str,
        is_flag=option.is_flag,
        default=False if option.is_flag else shown,
        multiple=option.is_many,
        metavar=metavar or None,
        help=option.help,
        envvar=option.variable(verb) or None,
        show_envvar=True,
        show_default=True,
    )


class _Argument(TyperArgument):
    """An argument that help shows as manuals do, without the type that all have: text."""

    def __init__(self, usage: str, **given: Any) -> None:
        super().__init__(**given)
        self._usage = usage
        self.type = copy(self.type)
        vars(self.type)["get_metavar"] = lambda **_: ""

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        """How it stands in a line of usage."""
        return [self._usage]


def _markup_mode() -> Literal["rich"] | None:
    """Help is drawn on a terminal, and plain elsewhere."""
    return "rich" if sys.stdout is not None and sys.stdout.isatty() else None


def _short(help_text: str | None) -> str:
    """The first statement of a help text: what fits a line of a list of verbs."""
    return re.split(r"[.:;](?:\s|$)", help_text or "", maxsplit=1)[0] + "."


def _with_values(words: Sequence[str]) -> list[str]:
    """A command line in which each option has its value; behind `--` nothing is an option."""
    end = words.index("--") if "--" in words else len(words)
    return [
        f"{word}={OPTIONAL_VALUES[word]}" if at < end and word in OPTIONAL_VALUES else word
        for at, word in enumerate(words)
    ]


def _with_part(group: str, words: list[str]) -> tuple[str, list[str]]:
    """The verb of a group that a command line names, else its first, and the rest of the line."""
    part, rest = split_verb(words)
    if part and part[0] in GROUPS[group]:
        return f"{group} {part[0]}", rest
    return f"{group} {GROUPS[group][0]}", words


def _help_hint(name: str) -> str:
    return f"`opsq {name + ' ' if name else ''}--help` explains it."


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    hint = "`opsq --help` lists the verbs."
    if ours := OTHERS_SAY.get(name) or next((f"{group} {name}" for group in GROUPS if name in GROUPS[group]), None):
        hint = f"It is called `opsq {ours}` here."
    elif near := get_close_matches(name, VERBS, 1):
        hint = f"Did you mean `opsq {near[0]}`?"
    return UsageError(f"opsq has no verb {name!r}.", hint=hint)
