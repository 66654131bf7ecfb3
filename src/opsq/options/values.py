"""Values as people type them in options: durations, sizes, metadata, instants, back-offs.

Each function names the option in its complaint. It must not look at the system except for the clock and the time zone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime

from opsq.errors import UsageError
from opsq.ids import parse_submission_id
from opsq.options.option import as_option
from opsq.setting_kinds import STORE
from opsq.strategy.tree import KEY, KEY_HINT, parse_pairs, parse_value
from opsq.titles import check_title
from opsq.units import counted, parse_duration, parse_size
from opsq.wire.messages import RESERVATION_MIN_S, Backoff, Dependency

VALUE_CHARACTERS = 1024
KEY_CHARACTERS = 1024
NAME_CHARACTERS = 255

_ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")


def size(option: str, text: str) -> int:
    """Bytes, at least 1."""
    size_bytes = int(as_option(option, text, parse_size))
    if size_bytes < 1:
        raise UsageError(f"{option} {text}: give at least one byte.")
    return size_bytes


def value(text: str) -> int | str:
    """A metadata value; see `parse_value`.

    Raises:
        UsageError: it starts with a quote and is not a JSON string.
    """
    try:
        return parse_value(text)
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def metadata(pairs: Sequence[str]) -> dict[str, int | str]:
    """Strategic metadata from `KEY=VALUE` words.

    Raises:
        UsageError: a word without `=`, a key that is none or the built-in one, or the same key twice.
    """
    try:
        found = parse_pairs(pairs)
    except ValueError as error:
        raise UsageError(f"-m: {error}.") from error
    if "submission" in found:
        raise UsageError("-m: the key `submission` is built in; it stands for the submission itself.")
    for key, text in found.items():
        if isinstance(text, str) and len(text) > VALUE_CHARACTERS:
            raise UsageError(
                f"The value of {key} has {counted(len(text), 'character')}; {VALUE_CHARACTERS} are the limit.",
                hint="Larger things go into --attach.",
            )
    return found


def dependencies(words: Sequence[str]) -> list[Dependency]:
    """What a submission waits for: `ID`, `ID:completed`, `ID:ended` or `KEY=VALUE`.

    Raises:
        UsageError: a word is none of these.
    """
    found = []
    for word in words:
        key, equals, text = word.partition("=")
        if equals:
            found.append(Dependency(key=check_key(key), value=value(text)))
            continue
        name, _, needs = word.partition(":")
        if needs not in ("", "completed", "ended"):
            raise UsageError(f"--after {word}: write ID, {name}:completed or {name}:ended.")
        found.append(Dependency(parse_submission_id(name), "ended" if needs == "ended" else "completed"))
    return found


def check_key(key: str) -> str:
    """Give `key` back if it can be a key.

    Raises:
        UsageError: it cannot.
    """
    if not KEY.fullmatch(key):
        raise UsageError(f"{key!r} is not a key.", hint=f"{KEY_HINT}.")
    return key


def counted_key(option: str, text: str) -> str:
    """A key whose values are counted.

    Raises:
        UsageError: it cannot be a key, or it is `submission`, of which each submission is a value.
    """
    if check_key(text) == "submission":
        raise UsageError(
            f"{option} submission: each submission is a value of that key.",
            hint="`opsq list` counts the chunks of each.",
        )
    return text


def store_url(option: str, text: str) -> str:
    """The URL of a store, for which a path may stand."""
    return str(as_option(option, text, STORE.read))


def web_origin(option: str, text: str) -> str:
    """An origin of pages, as browsers send it.

    Raises:
        UsageError: it is none.
    """
    if not _ORIGIN.fullmatch(text):
        raise UsageError(f"{option} {text}: write an origin, such as https://example.org or http://localhost:3000.")
    return text.lower()


def instant(option: str, text: str) -> int:
    """Milliseconds since 1970 UTC, from `2025-01-31T08:00`, `2025-01-31 08:00:00+02:00`, `…Z` or `@SECONDS`.

    Without a zone it is local time; where the clocks are set back and a time comes twice, the first.

    Raises:
        UsageError: it is none of these, or a local time that the clocks leave out.
    """
    try:
        seconds = float(text[1:]) if text.startswith("@") else _moment(option, text)
        if 0 <= seconds < 1e11:
            return round(seconds * 1000)  # in a float, 1.001 s are less than 1001 ms
    except (ValueError, OverflowError):
        pass
    raise UsageError(
        f"{option} {text}: not an instant.",
        hint="Write 2025-01-31T08:00, followed by Z or +02:00 for a zone, or @SECONDS.",
    )


def _moment(option: str, text: str) -> float:
    """Seconds since 1970; a day begins with its first time that exists."""
    moment = datetime.fromisoformat(text)
    seconds = moment.timestamp()
    if moment.tzinfo is not None or datetime.fromtimestamp(seconds) == moment:  # noqa: DTZ006  # local time is meant
        return seconds
    try:
        date.fromisoformat(text)
    except ValueError:
        both = moment.replace(fold=1).timestamp(), seconds  # not by astimezone, which swaps them
        before, after = (datetime.fromtimestamp(each, UTC).astimezone().isoformat() for each in both)
        raise UsageError(
            f"{option} {text}: the clocks are set forward, and leave this time out.",
            hint=f"Write {before} or {after}.",
        ) from None
    return seconds


def duration_or_instant(option: str, text: str | None) -> tuple[float | None, int | None]:
    """Seconds from now, or milliseconds since 1970; whichever `text` is."""
    if text is None:
        return None, None
    try:
        return parse_duration(text), None
    except ValueError:
        return None, instant(option, text)


def reservation(origin: str, text: str) -> float:
    """Seconds, as long as a reservation may be.

    Raises:
        UsageError: it is shorter, or no duration.
    """
    length_s = float(as_option(origin, text, parse_duration))
    if length_s < RESERVATION_MIN_S:
        raise UsageError(f"{origin} {text}: give {RESERVATION_MIN_S:g}s or more.")
    return length_s


def backoff(origin: str, text: str) -> Backoff:
    """A back-off from `BASE`, `BASE,FACTOR` or `BASE,FACTOR,MAX`, such as `1s,2,5m`.

    Raises:
        UsageError: it is none of these, or out of range.
    """
    words = text.split(",")
    if len(words) > 3:
        raise UsageError(f"{origin} {text}: write BASE,FACTOR,MAX, such as 1s,2,5m.")
    default = Backoff()
    base_s = float(as_option(origin, words[0], parse_duration))
    factor = default.factor
    if len(words) > 1:
        try:
            factor = float(words[1])
        except ValueError:
            factor = 0.0
        if not 1 <= factor <= 100:
            raise UsageError(f"{origin} {text}: the factor must be between 1 and 100.")
    max_s = float(as_option(origin, words[2], parse_duration)) if len(words) > 2 else max(default.max_s, base_s)
    return Backoff(base_s, factor, max_s)


def user_key(origin: str, text: str) -> str:
    """A key of the user's choice.

    Raises:
        UsageError: it is empty, or too long.
    """
    if not 1 <= len(text) <= KEY_CHARACTERS:
        raise UsageError(f"{origin}: a key has 1 to {KEY_CHARACTERS} characters, not {len(text)}.")
    return text


def consumer_name(origin: str, text: str) -> str:
    """The name of a consumer; empty: none.

    Raises:
        UsageError: it is too long.
    """
    if len(text) > NAME_CHARACTERS:
        raise UsageError(f"{origin}: a name has at most {NAME_CHARACTERS} characters, not {len(text)}.")
    return text


def title(origin: str, text: str) -> str:
    """A title of a submission.

    Raises:
        UsageError: it is too long, or not one line of plain text.
    """
    try:
        return check_title(text)
    except UsageError as error:
        error.message = f"{origin}: {error.message}"
        raise


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def exclude(**given: object) -> None:
    """Refuse more than one of these options; names are those of the options, with `_` for `-`.

    None and False mean that an option is not given; 0 is a value.

    Raises:
        UsageError: several were; the message names two of them.
    """
    options = [name for name, option in given.items() if option is not None and option is not False]
    found = ["--" + name.strip("_").replace("_", "-") for name in options]
    if len(found) > 1:
        raise UsageError(f"{found[0]} and {found[1]} cannot be combined.")


def pairs(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """The values of a repeatable KEY=VALUE option.

    Raises:
        UsageError: one has no key or no `=`.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise UsageError(f"{option} {text}: write KEY=VALUE.", hint=f"For example {option} {example}.")
        found[key.strip()] = value
    return found


def delimiter(origin: str, text: str) -> bytes:
    """The bytes of a delimiter, with the escapes of a C string.

    Raises:
        UsageError: a broken escape, or nothing.
    """
    try:
        decoded = os.fsencode(text).decode("unicode_escape").encode("latin-1")
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise UsageError(
            f"{origin} {text}: {error.reason}.", hint="Escapes are \\n, \\t, \\0, \\x1e and so on."
        ) from error
    if not decoded:
        raise UsageError(f"{origin}: give at least one byte.")
    return decoded
