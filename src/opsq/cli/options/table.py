"""One table of the global options and of the hot verbs, and the parser that reads it; the typer declarations are made from the same table.

It must not import typer or anything else that is slow to load: every hot verb passes through here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from opsq.errors import UsageError

Value = Any
"""What an option gives: bool for a flag, int for a count, float for a duration, str for text; None if absent."""


class Option(NamedTuple):
    """An option of a verb.

    Args:
        flags: the long form first.
        kind: flag, text, count (an integer ≥ 1), or duration.
        environment: the variable that stands in for the option; "" makes it `OPSQ_<VERB>_<LONG FORM>`.
    """

    flags: tuple[str, ...]
    help: str
    kind: str = "text"
    metavar: str = ""
    default: Value = None
    environment: str = ""

    @property
    def name(self) -> str:
        """The option as a Python name."""
        return self.flags[0].lstrip("-").replace("-", "_")

    def variable(self, verb: str) -> str:
        """The environment variable that stands in for this option of `verb`."""
        return self.environment or f"OPSQ_{verb}_{self.name}".upper().replace(" ", "_").replace("-", "_")


class Verb(NamedTuple):
    """A hot verb.

    Args:
        argument: the name of its arguments, as help shows it; "" takes none.
        is_many: any number of arguments, else exactly one.
        is_optional: the arguments may be left out.
    """

    name: str
    help: str
    argument: str
    argument_help: str
    options: tuple[Option, ...]
    is_many: bool = False
    is_optional: bool = False


GLOBAL = (
    Option(("--json",), "Print JSON on stdout, also on failure.", "flag", default=False, environment="OPSQ_JSON"),
    Option(("--quiet", "-q"), "Print no progress and no remarks.", "flag", default=False, environment="OPSQ_QUIET"),
    Option(
        ("--state-dir",),
        "The folder of the daemon: database, socket, log, content.",
        metavar="DIR",
        environment="OPSQ_STATE_DIR",
    ),
    Option(("--socket",), "The daemon's Unix socket.", metavar="PATH", environment="OPSQ_SOCKET"),
    Option(
        ("--address",),
        "A daemon that listens on TCP; its token comes from --token-file or OPSQ_TOKEN.",
        metavar="HOST:PORT",
        environment="OPSQ_ADDRESS",
    ),
    Option(
        ("--token-file",), "A file that holds the token for --address.", metavar="FILE", environment="OPSQ_TOKEN_FILE"
    ),
)
"""What every verb takes, in front of the verb or behind it."""

_HANDLES = "As `opsq reserve` prints them: SUBMISSION/INDEX@TOKEN."

HOT: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "reserve",
            "Reserve chunks as leases; prints one handle a line, exits 3 when nothing is free.",
            "",
            "",
            (
                Option(("--count", "-n"), "How many at most.", "count", "N", 1),
                Option(
                    ("--strategy", "-s"), "Which chunks come first; see `opsq explain`.", "text", "STRATEGY", "Random"
                ),
                Option(
                    ("--lease",),
                    "Length of the lease, for example 90, 10m, 2h; by default that of the submission.",
                    "duration",
                    "D",
                ),
                Option(("--wait", "-w"), "Wait up to this long for the first chunk.", "duration", "D", 0.0),
            ),
        ),
        Verb(
            "read",
            "Write the bytes of a reserved chunk to stdout.",
            "HANDLE",
            "The chunk: a handle, or SUBMISSION/INDEX.",
            (Option(("--output", "-o"), "Write to this file instead: beside it first, then renamed.", "text", "FILE"),),
        ),
        Verb(
            "complete",
            "Complete reserved chunks; durable when it returns.",
            "HANDLE",
            _HANDLES,
            (Option(("--result", "-r"), "The result of the chunk: a file, or - for stdin.", "text", "FILE"),),
            is_many=True,
        ),
        Verb(
            "fail",
            "Report failed attempts: the chunks are retried after a back-off, or die when their attempts are used up.",
            "HANDLE",
            _HANDLES,
            (
                Option(("--reason",), "Why, in words.", "text", "TEXT", ""),
                Option(("--delay",), "Retry after this long instead of the back-off.", "duration", "D"),
                Option(("--no-retry",), "Let the chunks die at once.", "flag", default=False),
            ),
            is_many=True,
        ),
        Verb(
            "release",
            "Give reserved chunks back; no attempt is counted.",
            "HANDLE",
            _HANDLES,
            (
                Option(
                    ("--consumer",),
                    "Give back all that this consumer holds; `opsq status` names consumers.",
                    "text",
                    "ID",
                ),
            ),
            is_many=True,
            is_optional=True,
        ),
        Verb(
            "extend",
            "Move the deadline of reserved chunks to a full length from now.",
            "HANDLE",
            _HANDLES,
            (Option(("--lease",), "The length from now; by default the reservation's own.", "duration", "D"),),
            is_many=True,
        ),
    )
}


class Given(NamedTuple):
    """What a command line gave for one verb. `by_flag` names the options that stood on the command line itself."""

    arguments: list[str]
    options: dict[str, Value]
    by_flag: frozenset[str]


def split_verb(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Move the global options in front of the verb behind it.

    Returns:
        The verb alone in a list (or nothing, when there is none) and everything else.

    Raises:
        UsageError: a global option lacks its value.
    """
    with_value = {flag for option in GLOBAL if option.kind != "flag" for flag in option.flags}
    position = 0
    while position < len(argv) and argv[position].startswith("-") and argv[position] != "-":
        if argv[position] in with_value:
            if position + 1 == len(argv):
                raise UsageError(f"Option {argv[position]} needs a value.")
            position += 1
        position += 1
    return list(argv[position : position + 1]), [*argv[:position], *argv[position + 1 :]]


def parse(verb: Verb, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Given:
    """Read the command line of a hot verb, as click would: options anywhere, `--x=v`, `-xv`, `--` ends them, the last one wins.

    Raises:
        UsageError: an unknown option, a missing or surplus value or argument, or a value out of range.
    """
    options = (*verb.options, *GLOBAL)
    by_flag = {flag: option for option in options for flag in option.flags}
    arguments: list[str] = []
    texts: dict[str, tuple[str, str]] = {}
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            arguments += reversed(rest)
            break
        if len(word) < 2 or word[0] != "-":
            arguments.append(word)
            continue
        flag, has_value, value = word, False, ""
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            has_value = bool(equals)
        elif len(word) > 2:
            flag, has_value, value = word[:2], True, word[2:]
        option = by_flag.get(flag)
        if option is None:
            raise UsageError(f"opsq {verb.name} has no option {flag}.", hint=f"`opsq {verb.name} --help` lists them.")
        if option.kind == "flag":
            if has_value and word.startswith("--"):
                raise UsageError(f"Option {flag} takes no value.")
            if has_value:
                rest.append("-" + value)
            value = "1"
        elif not has_value:
            if not rest:
                raise UsageError(f"Option {flag} needs a value.")
            value = rest.pop()
        texts[option.name] = (flag, value)
    given = frozenset(texts)
    for option in options:
        variable = option.variable(verb.name)
        if option.name not in texts and environ.get(variable):
            texts[option.name] = (variable, environ[variable])
    values = {o.name: read_value(o.kind, *texts[o.name]) if o.name in texts else o.default for o in options}
    _check_arguments(verb, arguments)
    return Given(arguments, values, given)


def _check_arguments(verb: Verb, arguments: list[str]) -> None:
    if not verb.argument and arguments:
        raise UsageError(f"opsq {verb.name} takes no argument, but {arguments[0]!r} was given.")
    if verb.argument and not arguments and not verb.is_optional:
        raise UsageError(f"opsq {verb.name} needs a {verb.argument}.", hint=f"`opsq {verb.name} --help` explains it.")
    if verb.argument and not verb.is_many and len(arguments) > 1:
        raise UsageError(f"opsq {verb.name} takes one {verb.argument}, but {len(arguments)} were given.")


_TRUE = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE = frozenset({"0", "false", "no", "off", "f", "n", ""})


def read_value(kind: str, origin: str, text: str) -> Value:
    """Turn the text of an option into its value.

    Args:
        origin: the flag or the variable that brought it, for the message.

    Raises:
        UsageError: `text` is not of that kind.
    """
    if kind == "text":
        return text
    if kind == "flag":
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise UsageError(f"{origin}={text} is neither yes (1, true, yes, on) nor no (0, false, no, off).")
        return word in _TRUE
    if kind == "count":
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise UsageError(f"{origin} {text} is not a count: give an integer from 1 on.")
        return int(text)
    return as_option(origin, text, _duration)


def _duration(text: str) -> float:
    if text.isascii() and text.isdigit():  # the common case, without loading the parser of durations
        return float(text)
    from opsq.units import parse_duration

    return parse_duration(text)


def as_option(origin: str, text: str, parser: Callable[[str], Value]) -> Value:
    """What `parser` reads in `text`; its complaint names the option `origin`."""
    try:
        return parser(text)
    except ValueError as error:
        raise UsageError(f"{origin}: {error}.") from error


def wants_json(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a command line asks for JSON, even one that cannot be parsed otherwise."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in words or environ.get("OPSQ_JSON", "").strip().lower() in _TRUE
