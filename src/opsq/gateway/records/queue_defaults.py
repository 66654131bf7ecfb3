"""What each queue of records has by default: how long a record is in flight, how often it is tried, how many may wait.

One JSON file in the state folder, which `opsq queue` changes and a gateway notices. It must not know HTTP, nor be slow
to import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from opsq import private_file
from opsq.errors import InputUnreadable, UsageError
from opsq.strategy import tree
from opsq.wire.messages import RESERVATION_MIN_S, Backoff

KEY = "queue"
"""The metadata key whose value is the name of the queue."""
DEFAULT_NAME = "default"
"""The queue of paths that name none."""


class QueueDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What holds for the records of a queue; None: what the settings of the daemon say, or no bound."""

    strategy: str = "OldestFirst"
    lease_s: Annotated[float, Meta(ge=RESERVATION_MIN_S, le=1e9)] = 30.0
    """How long a consumer may take before its record is offered again."""
    max_attempts: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    backoff: Backoff | None = None
    expires_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """How long after its POST a record is given up."""
    limit: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None
    """How many records may be unfinished; more are refused."""


_UNKNOWN = QueueDefaults()
_DECODER = msgspec.json.Decoder(dict[str, QueueDefaults])


def is_name(name: str) -> bool:
    """Whether a queue can have it."""
    return tree.KEY.fullmatch(name) is not None


def checked_name(name: str) -> str:
    """The name of a queue as it was given.

    Raises:
        UsageError: no queue can have it.
    """
    if not is_name(name):
        raise UsageError(
            f"{name!r:.80} cannot be the name of a queue.",
            hint="A name is a letter or _ and up to 63 more of letters, digits and _ . -, such as mails.",
        )
    return name


def selecting(name: str, strategy: str) -> str:
    """A strategy for the records of one queue."""
    return f"SelectOnly({KEY}={name}, {strategy})"


def path_in(state_dir: str) -> str:
    """Where the file is."""
    return f"{state_dir}/queues.json"


def read(path: str) -> dict[str, QueueDefaults]:
    """The defaults of all queues that have any of their own.

    Raises:
        InputUnreadable: the file cannot be read, or is not what `opsq queue` wrote.
    """
    try:
        with open(path, "rb") as file:
            return _DECODER.decode(file.read())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputUnreadable(f"Cannot read the queues in {path}: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise InputUnreadable(f"{path} does not describe queues: {error}.") from error


@contextlib.contextmanager
def changing(path: str) -> Iterator[dict[str, QueueDefaults]]:
    """The defaults of all queues, which are written back as they are at the end, by one process at a time.

    Raises:
        NotPermitted, InputUnreadable: it cannot be written, or as `read`.
    """
    with private_file.changing(path) as replace:
        found = read(path)
        yield found
        replace(msgspec.json.format(msgspec.json.encode(found, order="sorted")) + b"\n")


class QueueTable:
    """The defaults of queues as a gateway sees them: the file is read again when it has changed.

    Args:
        path: of the file; it need not exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._defaults: dict[str, QueueDefaults] = {}

    def of(self, name: str) -> QueueDefaults:
        """What holds for a queue, whether it has defaults of its own or not. Cost: one `stat`."""
        try:
            found = os.stat(self._path)
            seen = (found.st_mtime_ns, found.st_ino)
        except OSError:
            seen = (0, 0)
        if seen != self._seen:
            self._defaults, self._seen = read(self._path), seen
        return self._defaults.get(name, _UNKNOWN)
