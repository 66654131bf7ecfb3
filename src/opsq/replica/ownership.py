"""Who owns a replicated queue: takes the marker, renews it, and says whether this process still owns the queue.

It must not know what an owner does. Nothing is compared across machines but versions of the marker: each side measures
the length of the lease by a clock of its own, which also runs while the machine sleeps.

The owner counts the lease from before it wrote the marker, and takes a tenth off; who wants to take over counts from
after it has read the marker, and adds a tenth. So the owner has stopped before, unless one of the two clocks runs a
fifth slower than the other.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable

from msgspec.structs import replace

from opsq.clock import awake_or_not_s, boot, now
from opsq.content.content_store import Version
from opsq.errors import Conflict, Deposed, UsageError
from opsq.replica.owner_marker import Marker, OwnerMarker
from opsq.replica.owner_record import OwnerRecord, read_record, write_record
from opsq.units import format_duration

BEATS_COUNT = 5
"""How often the marker is renewed within the length of a lease."""
_OWNERS_SHARE = 0.9
_TAKERS_SHARE = 1.1
_LOOK_S = 1.0
_TRIES_COUNT = 3


class Ownership:
    """The right to serve a queue, as its marker says; used by one thread at a time, except for `holds`.

    Args:
        marker: of the replica.
        state_dir: of the queue; this process has its lock.
        lease_s: how long nobody else may take the marker after it was written.
        store: where the content of its chunks is.
    """

    def __init__(self, marker: OwnerMarker, state_dir: str, lease_s: float, store: str) -> None:
        self._object = marker
        self._state_dir = state_dir
        self._lease_s = lease_s
        self._marker = Marker(
            owner=secrets.token_hex(16), epoch=1, place=_place(state_dir), host=socket.gethostname(), store=store
        )
        self._version: Version | None = None
        self._unanswered: set[str] = set()
        """Nonces of what was written since the last answer: the store may have one of them."""
        self._until_s = 0.0
        self._wall_ms = 0

    @property
    def marker(self) -> Marker:
        """As this process has written it last."""
        return self._marker

    def holds(self) -> bool:
        """Whether nobody else can have taken over yet."""
        left_s = self._until_s - awake_or_not_s()
        passed_s = (now().wall - self._wall_ms) / 1000  # a machine that was stopped whole has only this clock
        return left_s > 0 and passed_s < self._lease_s * _OWNERS_SHARE

    # --- taking it ---

    def acquire(self) -> None:
        """Take the marker of this queue at the start of its daemon; may wait for as long as a lease.

        Raises:
            Deposed: another daemon has taken it since this folder had it.
            Conflict: it belongs to another queue.
            StoreNotVisible, NotPermitted: it cannot be read or written.
        """
        record = read_record(self._state_dir)
        if record is not None and record.url != self._object.url:
            record = None
        found = self._object.read()
        if found is not None:
            if record is None:
                raise Conflict(
                    f"{self._object.url} holds the replica of another queue, owned by {found[0].who}.",
                    hint="Name another URL. To go on with that queue: opsq restore URL",
                )
            if found[0].owner not in record.owners:
                raise self._deposed(found[0])
            if found[0].place != self._marker.place:
                found = self._wait_out(found, _LOOK_S, self._deposed)
        known = [] if record is None else record.owners
        self._begin(found, known)

    def take_over(self, *, is_forced: bool, on_wait: Callable[[str], None]) -> Marker:
        """Take the marker from whoever has it, for a new state folder; its daemon may start at once.

        Returns:
            The marker of the former owner.

        Args:
            is_forced: do not wait for the end of the lease.
            on_wait: told in words for what it waits.

        Raises:
            Conflict: the owner is alive.
            UsageError: there is no replica.
        """
        found = self._object.read()
        if found is None or not found[0].folder:
            raise UsageError(
                f"There is no replica at {self._object.url}" + ("." if found is None else ", or not a whole one yet."),
                hint="Name the URL that the daemon had as --replicate-to.",
            )
        if found[0].lease_s and not is_forced:
            wait_s = round(found[0].lease_s * _TAKERS_SHARE, 1)
            on_wait(f"Waiting {format_duration(wait_s)}, until the lease of {found[0].who} has ended.")
            found = self._wait_out(found, _LOOK_S, self._alive)
        self._lease_s = 0.0
        self._marker = replace(self._marker, store=found[0].store)
        try:
            self._begin(found, [])
        except Deposed:
            again = self._object.read()
            if not is_forced or again is None:
                raise
            found = again  # its owner has just renewed it
            self._begin(found, [])
        return found[0]

    def _wait_out(
        self, found: tuple[Marker, Version], look_s: float, refusal: Callable[[Marker], Conflict]
    ) -> tuple[Marker, Version]:
        """Return what was read when its lease has ended without a sign of its owner."""
        until_s = awake_or_not_s() + found[0].lease_s * _TAKERS_SHARE
        while (left_s := until_s - awake_or_not_s()) > 0:
            time.sleep(min(look_s, left_s))
            again = self._object.read()
            if again is None or again[1] != found[1]:
                raise refusal(found[0] if again is None else again[0])
        return found

    def _begin(self, found: tuple[Marker, Version] | None, known: list[str]) -> None:
        """Write the first marker of this owner over what was read."""
        before = None if found is None else found[0]
        if before is not None:
            self._marker = replace(self._marker, epoch=before.epoch + 1, folder=before.folder)
            self._version = found[1] if found is not None else None
        write_record(self._state_dir, OwnerRecord(self._object.url, [*known, self._marker.owner]))
        self._write()
        outdated = self._version
        self._write()
        self._object.check_swaps(self._marker, outdated)
        write_record(self._state_dir, OwnerRecord(self._object.url, [self._marker.owner]))

    # --- keeping it ---

    def renew(self, *, folder: str | None = None, lag_s: float = 0.0) -> None:
        """Write the marker again: the lease begins anew.

        Args:
            folder: where the newest whole copy is from now on.

        Raises:
            Deposed: somebody else has taken it.
            StoreNotVisible, NotPermitted: it could not be written; it is tried again.
        """
        self._marker = replace(self._marker, lag_s=lag_s, folder=self._marker.folder if folder is None else folder)
        self._write()

    def release(self) -> None:
        """Let the next owner take it at once; this process serves no more. Raises as `renew`."""
        self._until_s = 0.0
        self._lease_s = 0.0
        self._write()

    def _write(self) -> None:
        for _ in range(_TRIES_COUNT):
            self._marker = replace(
                self._marker,
                beat=self._marker.beat + 1,
                nonce=secrets.token_hex(8),
                written_at=now().wall,
                lease_s=self._lease_s,
            )
            self._unanswered.add(self._marker.nonce)
            begun_s, begun_ms = awake_or_not_s(), now().wall
            try:
                self._version = self._object.swap(self._marker, self._version)
            except Conflict:
                found = self._object.read()
                if found is None:
                    self._version = None
                elif found[0].nonce in self._unanswered:
                    self._version = found[1]
                else:
                    self._until_s = 0.0
                    raise self._deposed(found[0]) from None
                continue
            self._unanswered.clear()
            self._until_s, self._wall_ms = begun_s + self._lease_s * _OWNERS_SHARE, begun_ms
            return
        raise Conflict(f"The marker of {self._object.url} changes under every write.", hint="Try again.")

    # --- refusals ---

    def _deposed(self, marker: Marker) -> Deposed:
        return Deposed(
            f"The queue in {self._state_dir} is not its own any more: {marker.who} has taken over its replica at"
            f" {self._object.url}.",
            hint="What is here is an old state: keep the folder aside, and use the new daemon. To come back to this"
            " machine, run opsq restore with another --state-dir.",
        )

    def _alive(self, marker: Marker) -> Conflict:
        return Conflict(
            f"The queue at {self._object.url} is served: its owner is {marker.who}, and has just renewed its lease.",
            hint="Stop that daemon first. With --force it is deposed while it serves, and what it acknowledges until"
            " it sees that, within the length of its lease, may be lost.",
        )


def _place(state_dir: str) -> str:
    """Identify the state folder in this boot of this machine: whoever has its lock there knows that no other runs."""
    found = os.stat(state_dir)
    return hashlib.sha256(f"{boot()} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:32]
