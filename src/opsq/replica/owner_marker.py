"""The object beside a replica that says which daemon owns the queue, and until when nobody else may.

It must not decide who may take it (`ownership` does): it reads it, and replaces one version of it by the next.
"""

from __future__ import annotations

import contextlib

import msgspec

from opsq.content.content_store import Store, Version
from opsq.content.store_kinds import open_store
from opsq.errors import Conflict, UsageError
from opsq.units import format_instant

NAME = "owner.json"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What the object says; a newer opsq may add fields."""

    owner: str
    """Drawn at random by each start of a daemon, and by each restore."""
    epoch: int
    """How often the queue has had a new owner; counted from 1."""
    beat: int = 0
    """How often this owner has written it."""
    nonce: str = ""
    """Drawn at random for each version: an owner that was cloned while it ran does not take its clone's for its own."""
    place: str = ""
    """Which state folder, in which boot of its machine; empty: of a restore, before its daemon starts."""
    host: str = ""
    written_at: int = 0
    """By the owner's clock, in ms since 1970; for people only."""
    lease_s: float = 0.0
    """How long after this was written nobody else may take it; 0: at once."""
    folder: str = ""
    """Where the newest whole copy of the database is, below the URL; empty: there is none yet."""
    store: str = ""
    """Where the content of its chunks is."""
    lag_s: float = 0.0
    """For how long the oldest change that is not in the copy has been waiting."""

    @property
    def who(self) -> str:
        """The owner as people know it."""
        return f"{self.host or 'an unknown host'} (owner {self.epoch}, last heard of {format_instant(self.written_at)})"


class OwnerMarker:
    """The marker of one replica.

    Args:
        url: of the replica.
        patience_s: how long one call may take.

    Raises:
        UsageError: the URL is none of a store.
    """

    def __init__(self, url: str, patience_s: float) -> None:
        self.url = url
        self._store: Store = open_store(url, patience_s=patience_s)

    def read(self) -> tuple[Marker, Version] | None:
        """What it says, and its version; None: there is none.

        Raises:
            StoreNotVisible, NotPermitted: the store cannot be read.
            UsageError: the object is not a marker.
        """
        found = self._store.read_version(NAME)
        if found is None:
            return None
        try:
            return msgspec.json.decode(found[0], type=Marker), found[1]
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self.url}/{NAME} does not say who owns the queue: {error}.",
                hint="Name a URL below which nothing else is.",
            ) from error

    def swap(self, marker: Marker, version: Version | None) -> Version:
        """Replace that version (None: none) by this marker; returns the new version.

        Raises:
            Conflict: another version is there.
            StoreNotVisible, NotPermitted: the store cannot be written, or it is not known whether it was.
        """
        return self._store.swap_object(NAME, msgspec.json.encode(marker), version)

    def check_swaps(self, marker: Marker, outdated: Version | None) -> None:
        """Make sure that the store refuses to make what is there, and to replace a version that is not.

        Some services ignore one condition or both.

        Raises:
            UsageError: it does not.
        """
        for version in (None, outdated):
            with contextlib.suppress(Conflict):
                self.swap(marker, version)
                break
        else:
            return
        raise UsageError(
            f"The store at {self.url} has no conditional writes: two daemons could both believe to own the queue.",
            hint="Use a service that honours If-Match and If-None-Match, as S3 does.",
        )
