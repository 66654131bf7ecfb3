"""Makes a `NewSubmission` of what a producer gives: checks it, and writes large content to the store.

This file sends nothing. Content is written in constant memory before anything that names it is sent.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from opsq.client.core.arguments import converted
from opsq.client.core.content_access import Contents
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.titles import check_title
from opsq.units import counted
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import Backoff, CheckCapacity, Created, Dependency, NewSubmission, Welcome

if TYPE_CHECKING:
    from opsq.content.manifest import Content

Moment = dt.datetime | int
"""An aware datetime, or milliseconds since 1970 UTC."""


class Identified(Protocol):
    """A handle to a submission."""

    id: SubmissionId


Other = int | Identified
After = Other | tuple[Other, Literal["completed", "ended"]] | Mapping[str, int | str] | Dependency
"""What a submission waits for: another one, by itself or its id, and how that must end; or all that have a pair."""

SUBMISSIONS_LIMIT_COUNT = 10_000
"""At most this many submissions fit one frame."""

RoomWait = bool | float
"""Whether to wait for room: True without limit, a number for at most that many seconds, False not at all."""


class SubmissionOptions(TypedDict, total=False):
    """The options of a submission, wherever it is made from; `Producer.submit` explains them."""

    metadata: Mapping[str, int | str] | None
    priority: int
    max_attempts: int | None
    max_lost: int | None
    backoff: Backoff | tuple[float, float, float] | None
    on_dead: Literal["fail", "keep"]
    delay_s: float | None
    not_before_at: Moment | None
    expires_s: float | None
    expires_at: Moment | None
    unique_key: str | None
    unique_until: Literal["start", "done"]
    reservation_s: float | None
    weights: Mapping[str, float] | None
    idempotency_key: str | None
    idempotency_keep_s: float | None
    title: str | None
    after: Sequence[After]
    on_failed_dependency: Literal["cancel", "run", "keep"]


class SubmitOptions(SubmissionOptions, total=False):
    """The options of a submission: the keyword arguments of `Producer.submit`, which explains them."""

    attachment: bytes | None
    ack: Literal["committed", "replicated"] | None


_CHUNKS = (bytes, bytearray, memoryview)
"""What a chunk may be; a union of them takes six times as long to look through."""
_NOT_NONE = frozenset({"priority", "on_dead", "unique_until", "on_failed_dependency"})
"""The options that None is refused for; for all others it is the default."""


def new_request_key() -> bytes:
    """Sixteen bytes that name one submission whatever is resent; in hex they name the folder of its content."""
    return os.urandom(16)


def write_content(
    chunks: Iterable[bytes], request_key: bytes, contents: Contents, welcome: Welcome, *, is_repeated: bool = False
) -> Content:
    """Describe the content of a submission; small content travels in the description, other is written to the store.

    Args:
        is_repeated: the same may have been written under this key before.

    Raises:
        StoreNotVisible: the store is needed and cannot be seen from here.
        ChunkTooLarge: a chunk is above the daemon's chunk limit.
        StorageFull: there is no room; nothing is left of it.
    """
    from opsq.content.content_writer import ContentWriter
    from opsq.content.manifest import INLINE_LIMIT_BYTES, INLINE_LIMIT_COUNT

    rest = converted("chunks", chunks, iter, "an iterable of bytes")
    gathered: list[bytes] = []
    size_bytes = 0
    for chunk in rest:
        gathered.append(checked_chunk(chunk))
        size_bytes += len(chunk)
        if size_bytes > INLINE_LIMIT_BYTES or len(gathered) > INLINE_LIMIT_COUNT:
            break
    store = (
        contents.store if size_bytes > INLINE_LIMIT_BYTES or len(gathered) > INLINE_LIMIT_COUNT else contents.unchecked
    )
    writer = ContentWriter(
        store,
        request_key.hex(),
        chunk_limit_bytes=welcome.chunk_limit_bytes,
        is_durable=welcome.is_durable,
        is_repeated=is_repeated,
    )
    with writer:
        for chunk in gathered:
            writer.add_chunk(chunk)
        for chunk in rest:
            writer.add_chunk(checked_chunk(chunk))
        return writer.finish()


def wait_s_of(wait_for_room: RoomWait, began: float | None = None) -> float | None:
    """How long a request should wait for room, in seconds: 0 not at all, None without limit.

    Args:
        began: when the waiting began, by `time.monotonic`; None: now.

    Raises:
        UsageError: it is below 0.
    """
    if isinstance(wait_for_room, bool):
        return None if wait_for_room else 0.0
    if not (isinstance(wait_for_room, int | float) and 0 <= wait_for_room <= 1e9):
        raise UsageError(f"wait_for_room is {wait_for_room!r}; it may be True, False or seconds from 0 to 1e9.")
    return max(wait_for_room - (time.monotonic() - began if began is not None else 0.0), 0.0)


def capacity_request(
    request_id: int, chunks: Iterable[bytes], wait_for_room: RoomWait, options: SubmitOptions
) -> CheckCapacity | None:
    """What asks for room before any content is written; None: that cannot be asked, or need not be.

    It cannot before the chunks were read, unless they are a list. With an idempotency key the submission may exist
    already, and need no room.
    """
    size = _known_size(chunks)
    if size is None or options.get("idempotency_key") is not None:
        return None
    return CheckCapacity(request_id, *size, wait_s_of(wait_for_room), options.get("unique_key"))


def _known_size(chunks: Iterable[bytes]) -> tuple[int, int] | None:
    """How many chunks will be written to the store, and how many bytes; None: that is not known yet, or none will."""
    from opsq.content.manifest import INLINE_LIMIT_BYTES, INLINE_LIMIT_COUNT

    if not isinstance(chunks, list | tuple):
        return None
    size_bytes = sum(len(chunk) for chunk in chunks if isinstance(chunk, _CHUNKS))
    return (len(chunks), size_bytes) if size_bytes > INLINE_LIMIT_BYTES or len(chunks) > INLINE_LIMIT_COUNT else None


def new_submission(
    request_key: bytes, content: bytes, chunks_count: int, **options: Unpack[SubmitOptions]
) -> NewSubmission:
    """What to send for a submission whose content is in place.

    Raises:
        UsageError: a value is out of its range, or two cannot be combined.
    """
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None or name in _NOT_NONE}
    on_dead, unique_until = fields.pop("on_dead", "fail"), fields.pop("unique_until", "done")
    if on_dead not in ("fail", "keep"):
        raise UsageError(f"on_dead is {on_dead!r}; it may be 'fail' or 'keep'.")
    if unique_until not in ("start", "done"):
        raise UsageError(f"unique_until is {unique_until!r}; it may be 'start' or 'done'.")
    if fields.get("on_failed_dependency", "cancel") not in ("cancel", "run", "keep"):
        raise UsageError(
            f"on_failed_dependency is {fields['on_failed_dependency']!r}; it may be 'cancel', 'run' or 'keep'."
        )
    if fields.get("ack", "committed") not in ("committed", "replicated"):
        raise UsageError(f"ack is {fields['ack']!r}; it may be 'committed' or 'replicated'.")
    if unique_until == "start" and "unique_key" not in fields:
        raise UsageError("unique_until needs a unique_key.")
    for first, second in (("delay_s", "not_before_at"), ("expires_s", "expires_at")):
        if first in fields and second in fields:
            raise UsageError(f"{first} and {second} cannot be combined.")
    for name, how in _CONVERTED.items():
        if name in fields:
            wanted, convert = how
            fields[name] = converted(name, fields[name], convert, wanted)
    new = NewSubmission(
        request_key,
        chunks_count,
        content,
        keep_on_dead=on_dead == "keep",
        unique_until_start=unique_until == "start",
        **fields,
    )
    return checked(new)


def dependency(one: After) -> Dependency:
    """What a submission waits for, as a message has it."""
    if isinstance(one, Dependency):
        return one
    if isinstance(one, Mapping):
        [(key, value)] = one.items()
        return Dependency(key=key, value=value)
    other, needs = one if isinstance(one, tuple) else (one, "completed")
    submission_id: Any = getattr(other, "id", other)
    return Dependency(int(submission_id), needs)


def _dependencies(after: Sequence[After]) -> list[Dependency]:
    if not isinstance(after, Sequence):  # options are read twice, before and after the content
        raise TypeError
    return [dependency(one) for one in after]


def check_count(submissions: Sequence[NewSubmission]) -> None:
    """Refuse more submissions than a frame may carry."""
    if len(submissions) > SUBMISSIONS_LIMIT_COUNT:
        raise UsageError(
            f"{counted(len(submissions), 'submission')} are too many for one frame: "
            f"{SUBMISSIONS_LIMIT_COUNT} are possible."
        )


def made_before(submissions: Sequence[NewSubmission], created: Sequence[Created]) -> list[NewSubmission]:
    """Those that may have existed under a key that another call has used, or by an earlier, resent frame."""
    return [
        new
        for new, made in zip(submissions, created, strict=True)
        if not made.is_new and (new.unique_key is not None or new.idempotency_key is not None)
    ]


def checked_chunk(chunk: bytes) -> bytes:
    """The chunk; `UsageError` unless it is bytes."""
    if not isinstance(chunk, _CHUNKS):
        raise UsageError(
            f"One of the chunks is {type(chunk).__name__}; each must be bytes.",
            hint="Encode text first: text.encode().",
        )
    return chunk


def to_ms(moment: Moment) -> int:
    """A moment in milliseconds since 1970 UTC.

    Raises:
        UsageError: it has no zone, or the clocks leave it out.
    """
    if not isinstance(moment, dt.datetime):
        return moment
    if moment.tzinfo is None:
        raise UsageError("The datetime has no time zone.", hint="Use datetime.now(tz=...) or .astimezone().")
    before, after = (moment.replace(fold=fold).astimezone(dt.UTC).astimezone(moment.tzinfo) for fold in (1, 0))
    if after.replace(tzinfo=None) != moment.replace(tzinfo=None, fold=0):
        raise UsageError(
            f"{moment.isoformat()}: the clocks are set forward, and leave this time out.",
            hint=f"Use {before.isoformat()} or {after.isoformat()}.",
        )
    return int(moment.timestamp() * 1000)


_CONVERTED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "metadata": ("a mapping of keys to values", dict),
    "weights": ("a mapping of keys to weights", dict),
    "backoff": (
        "base in seconds, factor and longest in seconds",
        lambda backoff: Backoff(*backoff) if isinstance(backoff, tuple) else backoff,
    ),
    "not_before_at": ("a moment", to_ms),
    "expires_at": ("a moment", to_ms),
    "title": ("a line of text", check_title),
    "after": ("a list of submissions, or of pairs of metadata", _dependencies),
}
