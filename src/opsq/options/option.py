"""How a verb declares its options and arguments, and the global options, which every verb takes.

A verb is a function; each parameter behind the caller has a record of this file as its default. From these records come
the parser of command lines, typer's pages of help, the completions and the man pages. It must not import typer or
anything else that is slow to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from opsq.errors import UsageError

T = TypeVar("T")

Value = Any
"""What an option gives to the verb: what its reader makes of the text, a bool for a flag, a list if it is
repeatable."""

Reader = Callable[[str, str], Value]
"""Makes a value of a text, or raises `UsageError`; it is called with the flag or variable that brought the text, for
the message."""


COMMAND = "COMMAND"
"""What an argument is called that is a program and its arguments, behind `--`."""


def text(_: str, given: str) -> str:
    """Any text."""
    return given


class Option(msgspec.Struct, frozen=True):
    """An option or an argument of a verb.

    Args:
        flags: the short form first; empty for an argument.
        metavar: what help calls the value; empty for a flag.
        is_many: it may be given several times, and the verb gets a list.
        is_optional: an argument may be left out.
        environment: the variable that stands in for the option; empty makes it `OPSQ_<VERB>_<LONG FORM>`.
        shown: the default in help, where another file than this has it or it has a name.
    """

    flags: tuple[str, ...]
    metavar: str
    help: str
    read: Reader = text
    default: Value = None
    is_many: bool = False
    is_optional: bool = True
    environment: str = ""
    shown: str = ""

    @property
    def usage(self) -> str:
        """How an argument stands in a line of usage."""
        inputs, is_command, _ = self.metavar.partition(COMMAND)
        if is_command:
            return " ".join([*(f"{name}..." for name in inputs.split()[:1] if name != "--"), f"-- {COMMAND} [ARG...]"])
        words = f"{self.metavar}..." if self.is_many else self.metavar
        return f"[{words}]" if self.is_optional else words

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar

    @property
    def default_text(self) -> str:
        """The default as one would type it, or its name; empty if there is none to speak of."""
        if self.shown:
            return self.shown
        if self.is_flag or self.default in (None, "", 0.0, []):
            return ""
        return f"{self.default:g}s" if isinstance(self.default, float) else str(self.default)

    def variable(self, verb: str) -> str:
        """The environment variable that stands in for this option of `verb`; "" where there is neither."""
        if self.environment or not verb:
            return self.environment
        return f"OPSQ_{verb}_{self.flags[-1].lstrip('-')}".upper().replace(" ", "_").replace("-", "_")


class OptionSet(msgspec.Struct, frozen=True):
    """Options that the verb gets as one value, such as a named tuple; `make` is called with the value of each."""

    make: Callable[..., Any]
    options: Mapping[str, Option]


def option(
    form: str,
    help: str,  # noqa: A002  # as typer calls it
    read: Reader | None = None,
    default: Value = None,
    environment: str = "",
    shown: str = "",
) -> Any:
    """Declare an option.

    Args:
        form: how it is written, such as `-n, --limit N`; without a value it is a flag, with `...` behind the value it
            is repeatable. A value in lower case, such as `stop|finish`, is one of these words.
        read: what makes the value out of a text; by default it stays text.
        default: the value if the option is not given.
        shown: see `Option`.
    """
    words = form.split(" ")
    flags = tuple(word.rstrip(",") for word in words if word.startswith("-"))
    metavar = " ".join(words[len(flags) :])
    is_many = metavar.endswith("...")
    metavar = metavar.removesuffix("...")
    if not metavar:
        return Option(flags, "", help, boolean, False, environment=environment)
    if read is None:
        reader: Reader = OneOf(tuple(metavar.split("|"))) if metavar.islower() else text
    else:
        reader = read
    return Option(
        flags, metavar, help, reader, [] if is_many else default, is_many, environment=environment, shown=shown
    )


def argument(form: str, help: str, read: Reader = text, default: Value = None) -> Any:  # noqa: A002  # as typer calls it
    """Declare an argument; `form` is how manuals write it: `FILE`, `[FILE]`, `FILE...` or `[FILE...]`."""
    is_optional, is_many = form.startswith("["), form.rstrip("]").endswith("...")
    default = [] if is_many else default
    return Option((), form.strip("[].") if is_optional or is_many else form, help, read, default, is_many, is_optional)


def option_set(kind: type[T]) -> type[T]:
    """Let a named tuple of declarations be made without a field, which then has the default value of its option."""
    fields: dict[str, Option] = kind._field_defaults  # type: ignore[attr-defined]  # it is a named tuple
    kind.__new__.__defaults__ = tuple(each.default for each in fields.values())
    return kind


def options(kind: Any, *but: str, **others: Option) -> Any:
    """Declare the fields of an `option_set` as options of a verb, which gets them as one value.

    Args:
        but: fields that are no options of this verb.
        others: declarations that take the place of those of the tuple.
    """
    fields = {name: each for name, each in kind._field_defaults.items() if name not in but}
    return OptionSet(kind, {**fields, **others})


# --- what a value may be ----------------------------------------------------------------------------------------------


class OneOf:
    """Reads one of these words."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words = words

    def __call__(self, origin: str, given: str) -> str:
        """The word itself."""
        if given not in self.words:
            raise UsageError(f"{origin} {given}: give one of {', '.join(self.words)}.")
        return given


class Whole:
    """Reads a whole number within bounds."""

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        self.low = low
        self.high = high

    def __call__(self, origin: str, given: str) -> int:
        """The number."""
        try:
            number = int(given)
        except ValueError:
            raise UsageError(f"{origin} {given}: that is not a whole number.") from None
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            bounds = f"from {self.low} on" if self.high is None else f"from {self.low} to {self.high}"
            raise UsageError(f"{origin} {given}: give a number {bounds}.")
        return number


COUNT = Whole(1)

TRUE_WORDS = frozenset({"1", "true", "yes", "on", "t", "y"})
_FALSE_WORDS = frozenset({"0", "false", "no", "off", "f", "n", ""})


def boolean(origin: str, given: str) -> bool:
    """What a variable says of a flag."""
    word = given.strip().lower()
    if word not in TRUE_WORDS | _FALSE_WORDS:
        raise UsageError(f"{origin}={given} is neither yes (1, true, yes, on) nor no (0, false, no, off).")
    return word in TRUE_WORDS


def duration(origin: str, given: str) -> float:
    """Seconds."""
    if (
        given.isascii() and given.isdigit() and len(given) < 10
    ):  # the common case, without loading the parser of durations
        return float(given)
    from opsq.units import parse_duration

    return float(as_option(origin, given, parse_duration))


def positive_duration(origin: str, given: str) -> float:
    """Seconds, more than 0."""
    duration_s = duration(origin, given)
    if duration_s <= 0:
        raise UsageError(f"{origin} {given}: give more than 0.")
    return duration_s


def as_option(origin: str, given: str, parser: Callable[[str], Value]) -> Value:
    """What `parser` reads; its complaint names the option `origin`."""
    try:
        return parser(given)
    except ValueError as error:
        raise UsageError(f"{origin}: {error}.") from error


# --- options of every verb --------------------------------------------------------------------------------------------

GLOBAL: dict[str, Option] = {
    "json": option("--json", "Print JSON on stdout, also on failure.", environment="OPSQ_JSON"),
    "quiet": option("-q, --quiet", "Print no progress and no remarks.", environment="OPSQ_QUIET"),
    "utc": option("--utc", "Show times in UTC, not in local time.", environment="OPSQ_UTC"),
    "state_dir": option(
        "--state-dir DIR", "The folder of the daemon: database, socket, log, content.", environment="OPSQ_STATE_DIR"
    ),
    "socket": option("--socket PATH", "The daemon's Unix socket.", environment="OPSQ_SOCKET"),
    "address": option(
        "--address [tls://]HOST:PORT",
        "Where the daemon listens, or several shards with commas between them, or @FILE with one on each line; the "
        "token comes from --token-file or OPSQ_TOKEN.",
        environment="OPSQ_ADDRESS",
    ),
    "token_file": option(
        "--token-file FILE", "A file that holds the token for --address.", environment="OPSQ_TOKEN_FILE"
    ),
    "tls_ca_file": option(
        "--tls-ca-file FILE",
        "The CA that signed the certificate of a daemon at a tls:// address.",
        environment="OPSQ_TLS_CA_FILE",
    ),
    "tls_client_cert_file": option(
        "--tls-client-cert-file FILE",
        "This client's certificate, if the daemon requires one.",
        environment="OPSQ_TLS_CLIENT_CERT_FILE",
    ),
    "tls_client_key_file": option(
        "--tls-client-key-file FILE",
        "Its private key, if not in the same file.",
        environment="OPSQ_TLS_CLIENT_KEY_FILE",
    ),
}
"""What every verb takes, in front of the verb or behind it."""

HANDLES = argument("HANDLE...", "As `opsq reserve` prints them: SUBMISSION/INDEX@TOKEN.")
OPTIONAL_HANDLES = msgspec.structs.replace(HANDLES, is_optional=True)


class Declared(msgspec.Struct, frozen=True):
    """What a verb takes, read from its parameters.

    Args:
        options: each option and argument by the name of its parameter, those of sets too, and the global ones.
        sets: the options that become one value, by the name of the parameter.
    """

    options: dict[str, Option]
    sets: dict[str, OptionSet]

    def parameters(self, values: dict[str, Value]) -> dict[str, Value]:
        """What the verb is called with, from the value of every option; the global ones are not among them."""
        found = {name: value for name, value in values.items() if name not in GLOBAL}
        for name, group in self.sets.items():
            found[name] = group.make(**{each: found.pop(each) for each in group.options})
        return found


def declared(verb: Callable[..., None]) -> Declared:
    """The options of a verb in the order of its parameters, then the global ones; the first parameter is the caller."""
    defaults: tuple[Option | OptionSet, ...] = verb.__defaults__ or ()
    names = verb.__code__.co_varnames[1 : 1 + len(defaults)]
    found: dict[str, Option] = {}
    sets: dict[str, OptionSet] = {}
    for name, record in zip(names, defaults, strict=True):
        if isinstance(record, OptionSet):
            sets[name] = record
            found |= record.options
        else:
            found[name] = record
    return Declared({**found, **GLOBAL}, sets)
