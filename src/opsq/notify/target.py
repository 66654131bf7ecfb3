"""What can be notified, as the notifier sees it. Must not know how."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from opsq.documents.events import EventDocument


class Delivery(NamedTuple):
    """An event on its way to a target."""

    message: str
    """The same for each attempt, and for no other event."""
    event: EventDocument


class Failure(NamedTuple):
    """Why a target did not take a delivery."""

    text: str
    is_final: bool = False
    """Trying again is of no use."""
    retry_after_s: float = 0.0
    """It wants to be left alone for so long."""


class Target(Protocol):
    """A program or a webhook."""

    @property
    def name(self) -> str:
        """As the table of opsq.toml has it: `on`, `webhook.ops`."""

    def takes(self, kind: str) -> bool:
        """Whether events of this kind are for it."""

    def deliver(self, delivery: Delivery) -> Failure | None:
        """Hand a delivery over, in bounded time; None: it was taken. Called from several threads."""

    def abandon(self) -> None:
        """Give up at once on what is being delivered."""
