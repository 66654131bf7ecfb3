"""Every error that opsq raises on purpose: one tree, each class with its wire code and exit status.

This file must not build sentences: the class docstring is the default message, so text and documentation cannot drift
apart; `wording` makes one of a `cause` and its details.

    OpsqError
    ├── UsageError                 usage              2
    │   ├── InvalidStrategy        invalid_strategy   2
    │   ├── InvalidHandle          invalid_handle     2
    │   ├── InputUnreadable        input_unreadable   2
    │   ├── ChunkTooLarge          chunk_too_large    2
    │   └── ProtocolError          protocol           2
    ├── NotFound                   not_found          3
    │   └── NothingFree            nothing_free       3
    ├── Unreachable                unreachable        4
    │   ├── ContentMissing         content_missing    4
    │   └── StoreNotVisible        store_not_visible  4
    ├── Conflict                   conflict           5
    │   ├── ReservationLost        reservation_lost   5
    │   ├── AlreadyFinished        already_finished   5
    │   ├── NotFinished            not_finished       5
    │   ├── ContentChanged         content_changed    5
    │   ├── AlreadyRunning         already_running    5
    │   ├── Deposed                deposed            5
    │   ├── NameTaken              name_taken         5
    │   └── Moved                  moved              5
    ├── Refused                    refused            6
    │   ├── NoRoom                 no_room            6
    │   ├── StorageFull            storage_full       6
    │   ├── QueueDraining          draining           6
    │   ├── DatabaseDamaged        database_damaged   6
    │   └── TooManyConnections     too_many_connections 6
    ├── NotPermitted               not_permitted      7
    │   └── ContentNotPermitted    content_not_permitted 7
    ├── VersionMismatch            version_mismatch   8
    ├── WorkFailed                 work_failed        1
    ├── TimedOut                   timed_out          124
    ├── CommandNotExecutable       not_executable     126
    ├── CommandNotFound            command_not_found  127
    └── Bug                        bug                70
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar


class OpsqError(Exception):
    """Something went wrong in opsq."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 70

    def __init__(
        self, message: str | None = None, *, hint: str = "", cause: str = "", **details: int | float | str
    ) -> None:
        """Take a message and a hint, or the cause and details of which `wording` makes both when they are read."""
        super().__init__(*([] if message is None else [message]))
        self.cause = cause
        self.details = details
        if message is not None:
            self.message = message
        if hint:
            self.hint = hint

    @cached_property
    def message(self) -> str:
        """What happened, and to what."""
        return self._worded()[0] if self.cause else (type(self).__doc__ or "").strip()

    @cached_property
    def hint(self) -> str:
        """What to do next; may be empty."""
        return self._worded()[1] if self.cause else ""

    def _worded(self) -> tuple[str, str]:
        from opsq.wording import refusal

        return refusal(self.cause, self.details)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(OpsqError):
    """The request is invalid."""

    code = "usage"
    exit_status = 2


class InvalidStrategy(UsageError):
    """The strategy cannot be parsed."""

    code = "invalid_strategy"


class InvalidHandle(UsageError):
    """The handle is not of the form SUBMISSION/INDEX@TOKEN."""

    code = "invalid_handle"


class InputUnreadable(UsageError):
    """The input cannot be read."""

    code = "input_unreadable"


class ChunkTooLarge(UsageError):
    """The chunk is larger than the chunk limit."""

    code = "chunk_too_large"


class ProtocolError(UsageError):
    """The peer violated the protocol."""

    code = "protocol"


class NotFound(OpsqError):
    """There is no such submission or chunk."""

    code = "not_found"
    exit_status = 3


class NothingFree(NotFound):
    """No chunk that the strategy may serve is free."""

    code = "nothing_free"


class Unreachable(OpsqError):
    """The daemon cannot be reached."""

    code = "unreachable"
    exit_status = 4


class ContentMissing(Unreachable):
    """The content of the chunk is missing."""

    code = "content_missing"


class StoreNotVisible(Unreachable):
    """The content store of the daemon cannot be seen from this machine."""

    code = "store_not_visible"


class Conflict(OpsqError):
    """The present state does not allow this."""

    code = "conflict"
    exit_status = 5


class ReservationLost(Conflict):
    """The reservation is not held any more."""

    code = "reservation_lost"


class AlreadyFinished(Conflict):
    """The chunk was finished under another reservation."""

    code = "already_finished"


class NotFinished(Conflict):
    """The submission is not finished yet."""

    code = "not_finished"


class ContentChanged(Conflict):
    """The file has changed since it was submitted in place."""

    code = "content_changed"


class AlreadyRunning(Conflict):
    """Another process owns this state folder."""

    code = "already_running"


class Deposed(Conflict):
    """Another daemon owns the queue now."""

    code = "deposed"


class NameTaken(Conflict):
    """Another consumer has claimed this name."""

    code = "name_taken"


class Moved(Conflict):
    """The submission has moved to another daemon."""

    code = "moved"


class Refused(OpsqError):
    """The request was refused for lack of capacity."""

    code = "refused"
    exit_status = 6


class NoRoom(Refused):
    """The queue has no room for a submission."""

    code = "no_room"


class StorageFull(Refused):
    """The storage is full."""

    code = "storage_full"


class QueueDraining(Refused):
    """The daemon is being drained and takes no new submissions."""

    code = "draining"


class DatabaseDamaged(Refused):
    """The database is damaged; it was not modified."""

    code = "database_damaged"


class TooManyConnections(Refused):
    """The daemon has reached its connection limit."""

    code = "too_many_connections"


class NotPermitted(OpsqError):
    """The token or the user does not permit this."""

    code = "not_permitted"
    exit_status = 7


class ContentNotPermitted(NotPermitted):
    """The content may not be read by this user."""

    code = "content_not_permitted"


class VersionMismatch(OpsqError):
    """The versions are incompatible."""

    code = "version_mismatch"
    exit_status = 8


class WorkFailed(OpsqError):
    """A chunk died, or the submission failed."""

    code = "work_failed"
    exit_status = 1


class TimedOut(OpsqError):
    """Timed out."""

    code = "timed_out"
    exit_status = 124


class CommandNotExecutable(OpsqError):
    """The command cannot be executed."""

    code = "not_executable"
    exit_status = 126


class CommandNotFound(OpsqError):
    """The command was not found."""

    code = "command_not_found"
    exit_status = 127


class Bug(OpsqError):
    """Internal error (bug)."""

    code = "bug"


def _tree(cls: type[OpsqError]) -> dict[str, type[OpsqError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


EXITS: dict[str, str] = {
    "0": "done",
    "1": "work failed: a chunk died, or the submission failed, was cancelled or expired",
    "2": "usage, or input that cannot be read",
    "3": "not found: an unknown id, or nothing to reserve",
    "4": "the daemon, or its content store, cannot be reached",
    "5": "conflict: reservation lost, already finished, not finished yet, already running",
    "6": "refused: the queue or the storage is full, or the database is damaged",
    "7": "not permitted: the token or the user does not allow it",
    "8": "incompatible versions",
    "70": "internal error (bug); the traceback is in the log, and its path is printed",
    "124": "timed out",
    "126": "command not executable",
    "127": "command not found",
    "128+n": "killed by signal n",
}
"""What each exit status means; manual and README have this table."""

READER_ERRORS = (StoreNotVisible, ContentNotPermitted)
"""What keeps this user or machine from reading content: no chunk is to blame, so none is failed for it."""

BY_CODE: dict[str, type[OpsqError]] = _tree(OpsqError)
"""Wire code → class, to turn an error reply back into the exception."""


def from_code(
    code: str, message: str, hint: str = "", cause: str = "", details: Mapping[str, int | float | str] | None = None
) -> OpsqError:
    """Make the exception that an error reply reports.

    An unknown code (from a newer daemon) gives a plain `OpsqError`.
    """
    return BY_CODE.get(code, OpsqError)(message or None, hint=hint, cause=cause, **(details or {}))
