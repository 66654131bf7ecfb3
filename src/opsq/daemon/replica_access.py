"""What a daemon looks at before it serves a replicated queue, and how it takes and gives back the ownership of it.

It must not copy anything (`replication` does).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opsq.errors import OpsqError, UsageError
from opsq.replica.owner_record import check_no_record
from opsq.settings import Settings

if TYPE_CHECKING:
    from opsq.replica.ownership import Ownership

_FILES = "file://"

_log = logging.getLogger("opsq.replica")


def check_replica(settings: Settings) -> None:
    """Refuse settings under which the loss of the machine would lose content, or its replica would be left behind.

    Raises:
        UsageError: the content is only on this machine, or what is replicated is to be acknowledged and nothing is.
        CommandNotFound: Litestream is not installed.
        Conflict: the folder has a replica, and none is set.
    """
    if not settings.replicate_to:
        if settings.ack == "replicated":
            raise UsageError(
                "With ack = replicated, submits would wait for a replica that there is not.",
                hint="Set replicate_to, too.",
            )
        check_no_record(settings.state_dir)
        return
    is_inside = settings.store.startswith(f"{_FILES}{settings.state_dir}/")
    if is_inside or (settings.store.startswith(_FILES) and not settings.replicate_to.startswith(_FILES)):
        raise UsageError(
            f"The queue would be copied to {settings.replicate_to}, but the content of its chunks is only on this"
            f" machine, in {settings.store}.",
            hint="Have clients write it to an object store, too: --store s3://BUCKET/PREFIX (or gs://, az://).",
        )
    from opsq.replica.litestream import find_litestream

    find_litestream()


def take_ownership(settings: Settings) -> Ownership:
    """Take the marker of the replica, or refuse to start; may wait for as long as a lease.

    Raises:
        Deposed, Conflict: it is somebody else's.
        StoreNotVisible, NotPermitted: it cannot be read or written.
    """
    from opsq.replica.owner_marker import OwnerMarker
    from opsq.replica.ownership import BEATS_COUNT, Ownership

    lease_s = settings.replicate_lease_s
    marker = OwnerMarker(settings.replicate_to, lease_s / BEATS_COUNT)
    ownership = Ownership(marker, settings.state_dir, lease_s, settings.store)
    ownership.acquire()
    return ownership


def release(ownership: Ownership) -> None:
    """Let the next daemon start without waiting."""
    try:
        ownership.release()
    except OpsqError as error:
        _log.warning("the lease of the replica is not given back and has to run out: %s", error)
