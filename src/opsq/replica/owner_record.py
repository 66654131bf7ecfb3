"""What a state folder remembers of its replica: where it is, and under which names this folder has owned it.

It must not say who owns the replica now: the marker beside the replica does.
"""

from __future__ import annotations

import msgspec

from opsq.errors import Conflict, InputUnreadable
from opsq.private_file import changing

FILE = "replica.json"


class OwnerRecord(msgspec.Struct, frozen=True):
    """What the file says."""

    url: str
    owners: list[str]
    """Under which the marker may have been written from here last: two, if a start was killed while it did so."""


def read_record(state_dir: str) -> OwnerRecord | None:
    """What this folder remembers; None: it has no replica.

    Raises:
        InputUnreadable: the file cannot be read.
    """
    path = f"{state_dir}/{FILE}"
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=OwnerRecord)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise InputUnreadable(f"Cannot read {path}: {error}.") from error


def write_record(state_dir: str, record: OwnerRecord) -> None:
    """Remember; durable on return."""
    with changing(f"{state_dir}/{FILE}") as replace:
        replace(msgspec.json.encode(record))


def check_no_record(state_dir: str) -> None:
    """Refuse to open a queue without its replica.

    Raises:
        Conflict: the folder has one.
    """
    record = read_record(state_dir)
    if record is not None:
        raise Conflict(
            f"The queue in {state_dir} has a replica at {record.url}, without which it may not be opened: somebody"
            " else may own it now.",
            hint=f"Start it with --replicate-to {record.url}, or, if it is to have no replica any more, remove"
            f" {state_dir}/{FILE}.",
        )
