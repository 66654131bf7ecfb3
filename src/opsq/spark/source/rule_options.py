"""What a submission can be given, as options of a write: the table of `opsq submit` under Spark's names.

This file must not know what else a write takes (`source_options`), nor import PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from opsq.client.core.arguments import converted
from opsq.client.core.new_submission import dependency, new_submission, to_ms
from opsq.errors import UsageError
from opsq.options.option import OneOf, Option, options
from opsq.options.submission_options import Rules
from opsq.options.values import metadata as metadata_of
from opsq.strategy.tree import format_value
from opsq.wire.messages import Backoff


def camel_case(name: str) -> str:
    """`chunk_format` is `chunkFormat`, as Spark writes the names of options."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


RULES: dict[str, Option] = {
    camel_case(declared.flags[-1].removeprefix("--").replace("-", "_")): declared
    for declared in options(Rules).options.values()
}
"""What a submission can be given, from the table of `opsq submit`, by the name that the option has in Spark."""


def read_rules(text_of: Callable[[str], str | None], metadata: dict[str, int | str]) -> dict[str, Any]:
    """What the submission is given, as keyword arguments of `Producer.submit`.

    Args:
        text_of: the text of an option by its name.
        metadata: of the submission, which has options of its own.

    Raises:
        UsageError: an option cannot be understood, or two cannot be combined.
    """
    values: dict[str, Any] = {}
    for (name, declared), field in zip(RULES.items(), Rules._fields, strict=True):
        text = text_of(name)
        if text is None or field == "metadata":
            continue
        if declared.is_many:
            values[field] = _words(name, text.strip())
        elif declared.metavar == "KEY":
            values[field] = text
        else:
            word = text.strip().lower() if isinstance(declared.read, OneOf) else text.strip()
            values[field] = declared.read(name, word)
    try:
        keywords = Rules(**values).as_keywords()
    except UsageError as error:
        raise UsageError(_as_options(error.message), hint=error.hint and _as_options(error.hint)) from error
    keywords["metadata"] = metadata
    for name in ("metadata", "weights"):
        if not keywords[name]:
            del keywords[name]
    new_submission(bytes(16), b"", 0, **keywords)
    return keywords


_OF_KEYWORDS = {
    "delay_s": "delay",
    "expires_at": "expires",
    "expires_s": "expires",
    "idempotency_keep_s": "keep",
    "not_before_at": "at",
    "reservation_s": "reservation",
    "unique_key": "unique",
    "weights": "weight",
}
"""Keywords of `Producer.submit` that are not called as the options are."""


def keyword_option(name: str, value: Any) -> tuple[str, Any]:
    """An option of a write for a keyword argument of `Producer.submit`; its value may have to be written as text.

    Raises:
        UsageError: it is no moment, or no submission to wait for.
    """
    if name in ("not_before_at", "expires_at"):
        value = f"@{converted(name, to_ms(value), lambda ms: ms / 1000, 'a moment')}"
    elif name == "after" and not isinstance(value, str | Mapping):
        value = converted(name, value, lambda many: [_after_word(one) for one in many], "a list of submissions")
    elif isinstance(value, Backoff):
        value = (value.base_s, value.factor, value.max_s)
    return _OF_KEYWORDS.get(name, camel_case(name)), value


def _after_word(one: Any) -> str:
    """What a submission waits for, as `--after` has it."""
    if isinstance(one, str):
        return one
    found = dependency(one)
    if found.key is None or found.value is None:
        return f"{found.submission_id}:{found.needs}"
    return f"{found.key}={format_value(found.value)}"


def rules_as_options(rules: Rules) -> dict[str, str]:
    """What a submission is given as options of a write; `read_rules` reads the same from them."""
    found: dict[str, str] = {}
    for name, field in zip(RULES, Rules._fields, strict=True):
        value = getattr(rules, field)
        if value is None or value == []:
            continue
        if field == "metadata":
            found[name] = msgspec.json.encode(metadata_of(value)).decode()
        elif field == "not_before_at":
            found[name] = f"@{value / 1000}"
        elif isinstance(value, Backoff):
            found[name] = ",".join(map(number_text, (value.base_s, value.factor, value.max_s)))
        elif isinstance(value, list):
            found[name] = msgspec.json.encode(value).decode()
        else:
            found[name] = number_text(value) if isinstance(value, float) else str(value)
    return found


def _words(name: str, text: str) -> list[str]:
    """The values of an option that may have several: a JSON array, a JSON object of KEY=VALUE, or between commas."""
    if text[:1] not in ("[", "{"):
        return [word.strip() for word in text.split(",")]
    try:
        found = msgspec.json.decode(text, type=list[str | int] | dict[str, str | int | float])
    except msgspec.DecodeError as error:
        raise UsageError(
            f"The option {name} cannot be {text!r}: {error}.", hint="Write values between commas, or a JSON array."
        ) from error
    if isinstance(found, list):
        return list(map(str, found))
    return [f"{key}={value if isinstance(value, float) else format_value(value)}" for key, value in found.items()]


def number_text(value: float) -> str:
    """All digits of a float and no exponent, which durations do not have."""
    return f"{Decimal(repr(float(value))):f}"


def _as_options(message: str) -> str:
    """A message about flags of a verb as one about options: `--max-lost` is maxLost."""
    return re.sub(r"--([a-z-]+)", lambda found: camel_case(found[1].replace("-", "_")), message)
