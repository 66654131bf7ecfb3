"""What all JSON documents have in common; each is described in opsq-json(7).

Fields may be added, never removed. Ids and handles are strings, instants are RFC 3339 in UTC, `_s` is seconds. It must
not print, nor import anything slow: the hot verbs print JSON too.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from opsq.errors import OpsqError
from opsq.units import format_instant

if TYPE_CHECKING:
    from opsq.wire.messages import Finding


class Shape(msgspec.Struct):
    """A JSON object."""

    @classmethod
    def from_message(cls, message: object, **own: Any) -> Self:
        """Take fields that are not in `own` from a message: `x`, `x_count` or `x_name`.

        Ids and instants become text.
        """
        for name in cls.__struct_fields__:
            for given in () if name in own else (name, f"{name}_count", f"{name}_name"):
                if hasattr(message, given):
                    own[name] = _as_json(name, getattr(message, given))
        return cls(**own)


class ErrorShape(Shape):
    """`exit` is the exit status; `code` names the kind, more exactly."""

    code: str
    exit: int
    message: str
    hint: str

    @classmethod
    def of(cls, failure: OpsqError) -> ErrorShape:
        """A failure as JSON."""
        return cls(failure.code, failure.exit_status, failure.message, failure.hint)


class CauseShape(Shape):
    """One thing that holds work back, or a fact about that before it: a code, and the details of its sentence."""

    code: str
    details: dict[str, int | float | str | None]

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> list[Self]:
        """What was found, as JSON."""
        return [
            cls(found.code, {name: _as_json(name, detail) for name, detail in found.details.items()})
            for found in findings
        ]


class ErrorDocument(Shape):
    """What any verb prints when it fails."""

    error: ErrorShape


def instant(wall_ms: int | None) -> str | None:
    """A wall-clock instant in RFC 3339, UTC, to the millisecond; None stays None."""
    return None if wall_ms is None else format_instant(wall_ms)


def path_text(path: str) -> str:
    r"""A path as JSON can hold it: bytes that are not UTF-8 become `\xNN`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def text_or_base64(content: bytes) -> dict[str, str]:
    """The field that carries bytes in JSON: `text` if they are UTF-8, else `base64`."""
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(content, newline=False).decode("ascii")}


def _as_json(name: str, given: Any) -> Any:
    if name.endswith("_id") and given is not None:
        return str(given)
    return instant(given) if name.endswith("_at") else given
