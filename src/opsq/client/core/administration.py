"""Rules and explanations for programs: pauses, limits, weights, what runs, and why work does not.

This file makes the requests; who sends them, blocking or awaited, is another matter.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Protocol, TypeVar

from opsq.client.core.arguments import pairs
from opsq.users import user_name
from opsq.wire.messages import (
    Changed,
    Drain,
    Explain,
    Explained,
    ExplainWork,
    Limit,
    Pause,
    Request,
    Resume,
    RulesState,
    Running,
    RunningChunks,
    ShowRules,
    Unlimit,
    Weight,
    WorkExplained,
)

Value = int | str
R = TypeVar("R")


class Caller(Protocol):
    """Sends a request and waits for its answer."""

    def next_id(self) -> int:
        """An id for the next request."""

    def call(self, request: Request, kind: type[R]) -> R:
        """The answer, of that kind; raises the error that the daemon answers with."""


class AsyncCaller(Protocol):
    """The same, awaited."""

    def next_id(self) -> int:
        """An id for the next request."""

    async def call(self, request: Request, kind: type[R]) -> R:
        """See `Caller.call`."""


def caller_name() -> str:
    """Who sets a rule, as `opsq rules` shows it: the user that the process runs as, and the host."""
    return f"{user_name(os.getuid())}@{socket.gethostname()}"[:255]


class Rules:
    """The rules of a queue, and its explanations."""

    link: Caller

    def explain(self, strategy: object, *, analyze: bool = False) -> Explained:
        """How a strategy is served: its arms, their SQL, their plans, their fronts.

        Args:
            analyze: try it out on the queue as it is; nothing is reserved.

        Raises:
            InvalidStrategy: it cannot be parsed.
        """
        return self.link.call(Explain(self.link.next_id(), str(strategy), analyze), Explained)

    def explain_work(self, submission_id: int, index: int | None = None) -> WorkExplained:
        """Why a submission, or one chunk of it, is not running; the first sentence of the answer is the headline.

        Raises:
            NotFound: there is no such submission or chunk.
        """
        return self.link.call(ExplainWork(self.link.next_id(), submission_id, index), WorkExplained)

    def running(
        self, submission_id: int | None = None, *, metadata: Mapping[str, Value] | None = None, limit: int = 1000
    ) -> RunningChunks:
        """The chunks that are being worked on, by whom and where, the longest first.

        Args:
            submission_id: only of this submission; None: of all that have the `metadata`.

        Raises:
            NotFound: there is no such submission.
        """
        request = Running(self.link.next_id(), submission_id, pairs("metadata", metadata or {}), None, limit)
        return self.link.call(request, RunningChunks)

    def pause(self, metadata: Mapping[str, Value], *, by_operator: bool = False) -> bool:
        """Pause all submissions that have every pair (no pair: all); False if they were paused already.

        Raises:
            UsageError: a pair cannot be one.
            NotPermitted: `by_operator` is given, and the connection is not an operator's.
        """
        return bool(
            self.link.call(
                Pause(self.link.next_id(), pairs("metadata", metadata), by_operator, caller_name()), Changed
            ).count
        )

    def resume(self, metadata: Mapping[str, Value], *, by_operator: bool = False) -> bool:
        """End the pause with exactly these pairs; False if there was none.

        Raises:
            NotPermitted: an operator set it, and `by_operator` is not given.
        """
        return bool(
            self.link.call(Resume(self.link.next_id(), pairs("metadata", metadata), by_operator), Changed).count
        )

    def limit(
        self,
        key: str,
        value: Value | None = None,
        *,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
        burst: int | None = None,
    ) -> None:
        """Limit the chunks of a value (None: of each value) that are reserved at once, or started per second.

        Replaces the limit for the same key and value.

        Args:
            key: of metadata.
            value: of the key; None: each.
            concurrency: how many chunks may be reserved at once.
            rate_per_s: how many chunks may start in a second.
            burst: how many of them at once, after a rest.

        Raises:
            UsageError: neither a concurrency nor a rate.
            NotPermitted: the connection is not an operator's.
        """
        self.link.call(Limit(self.link.next_id(), key, value, concurrency, rate_per_s, burst, caller_name()), Changed)

    def unlimit(self, key: str, value: Value | None = None) -> None:
        """Lift a limit.

        Raises:
            NotFound: there is none.
            NotPermitted: the connection is not an operator's.
        """
        self.link.call(Unlimit(self.link.next_id(), key, value), Changed)

    def weight(self, key: str, value: Value, weight: float) -> None:
        """Give a value of a key a weight in `Fair`, 0.001 to 1000; it holds from its next turn on.

        Raises:
            UsageError: the weight is out of its range.
            NotPermitted: the connection is not an operator's.
        """
        self.link.call(Weight(self.link.next_id(), key, value, weight), Changed)

    def drain(self, *, undo: bool = False) -> bool:
        """Take no new submissions, and work off what is there, until that is undone; False if it was so already.

        Args:
            undo: take submissions again.

        Raises:
            NotPermitted: the connection is not an operator's.
        """
        return bool(self.link.call(Drain(self.link.next_id(), undo), Changed).count)

    def rules(self) -> RulesState:
        """All pauses, limits and weights.

        Raises:
            Unreachable: see `Queue`.
        """
        return self.link.call(ShowRules(self.link.next_id()), RulesState)


class AsyncRules:
    """The same, awaited; see `Rules`."""

    link: AsyncCaller

    async def explain(self, strategy: object, *, analyze: bool = False) -> Explained:
        """How a strategy is served; see `Rules.explain`."""
        return await self.link.call(Explain(self.link.next_id(), str(strategy), analyze), Explained)

    async def explain_work(self, submission_id: int, index: int | None = None) -> WorkExplained:
        """Why work is not running; see `Rules.explain_work`."""
        return await self.link.call(ExplainWork(self.link.next_id(), submission_id, index), WorkExplained)

    async def running(
        self, submission_id: int | None = None, *, metadata: Mapping[str, Value] | None = None, limit: int = 1000
    ) -> RunningChunks:
        """The chunks that are being worked on; see `Rules.running`."""
        request = Running(self.link.next_id(), submission_id, pairs("metadata", metadata or {}), None, limit)
        return await self.link.call(request, RunningChunks)

    async def pause(self, metadata: Mapping[str, Value], *, by_operator: bool = False) -> bool:
        """Pause; see `Rules.pause`."""
        return bool(
            (
                await self.link.call(
                    Pause(self.link.next_id(), pairs("metadata", metadata), by_operator, caller_name()), Changed
                )
            ).count
        )

    async def resume(self, metadata: Mapping[str, Value], *, by_operator: bool = False) -> bool:
        """End a pause; see `Rules.resume`."""
        return bool(
            (await self.link.call(Resume(self.link.next_id(), pairs("metadata", metadata), by_operator), Changed)).count
        )

    async def limit(
        self,
        key: str,
        value: Value | None = None,
        *,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
        burst: int | None = None,
    ) -> None:
        """Set a limit; see `Rules.limit`."""
        await self.link.call(
            Limit(self.link.next_id(), key, value, concurrency, rate_per_s, burst, caller_name()), Changed
        )

    async def unlimit(self, key: str, value: Value | None = None) -> None:
        """Lift a limit; see `Rules.unlimit`."""
        await self.link.call(Unlimit(self.link.next_id(), key, value), Changed)

    async def weight(self, key: str, value: Value, weight: float) -> None:
        """Set a weight; see `Rules.weight`."""
        await self.link.call(Weight(self.link.next_id(), key, value, weight), Changed)

    async def drain(self, *, undo: bool = False) -> bool:
        """Take no new submissions; see `Rules.drain`."""
        return bool((await self.link.call(Drain(self.link.next_id(), undo), Changed)).count)

    async def rules(self) -> RulesState:
        """All rules; see `Rules.rules`."""
        return await self.link.call(ShowRules(self.link.next_id()), RulesState)
