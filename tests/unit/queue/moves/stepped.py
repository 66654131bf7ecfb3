"""A mover that goes on only when a test has it do so, with all that a test wants to happen in between.

It is the real one, in a thread of its own that runs while the test waits for it, and never beside it. So what happens
is the same each time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from opsq.client.core.mover import Mover
from opsq.errors import OpsqError, Unreachable
from unit.model.rig import Rig
from unit.queue.moves.pair import Killed

PATIENCE_S = 3.0


class SteppedCaller:
    """A connection of a stepped mover to an engine."""

    def __init__(self, thread: SteppedMover, rig: Rig) -> None:
        self._thread = thread
        self.rig = rig
        self.peer = rig.connect("mover")
        self.peer.uid = 0
        self.engine = rig.engine

    def next_id(self) -> int:
        return next(self.rig.ids)

    def call(self, request: Any, _: type) -> Any:
        [reply] = self._thread.ask(self, [request])
        return reply

    def call_all(self, requests: Sequence[Any], _: type) -> list[Any]:
        return self._thread.ask(self, requests)

    @property
    def is_there(self) -> bool:
        """Whether the engine lives to which it was made."""
        return self.rig.idle_engine is self.engine

    def send(self, requests: Sequence[Any]) -> None:
        """Ask for all of these."""
        self._refused: dict[int, OpsqError] = {}
        for request in requests:
            try:
                self.rig.send(self.peer, request)
            except OpsqError as error:
                self._refused[request.id] = error

    def answers(self, requests: Sequence[Any]) -> list[Any] | None:
        """What the engine has said to these; None: not to all of them yet; the first error is raised."""
        said = {reply.id for peer, reply in self.rig.told if peer is self.peer and hasattr(reply, "id")}
        if not all(request.id in said or request.id in self._refused for request in requests):
            return None
        found: list[Any] = []
        for request in requests:
            if request.id in self._refused:
                raise self._refused[request.id]
            found += self.rig.replies(self.peer, request.id)
        return found


class SteppedMover(threading.Thread):
    """Moves all there is from one engine to the other.

    Attributes:
        error: with which it has ended; None: it still runs, or has done all.
        is_over: whether it has ended.
        mover: what has moved, and what was left.
    """

    def __init__(self, source: Rig, target: Rig, shard: int, *, with_final: bool) -> None:
        super().__init__(daemon=True)
        self._turn, self._is_idle = threading.Semaphore(0), threading.Semaphore(0)
        self.callers = [SteppedCaller(self, rig) for rig in (source, target)]
        self.mover = Mover(
            *self.callers,
            shard,
            "there:7400",
            source_address="here:7400",
            with_final=with_final,
            wait_s=PATIENCE_S,
        )
        self._asked: tuple[SteppedCaller, Sequence[Any]] | None = None
        self._answer: list[Any] | BaseException = []
        self._is_sent = False
        self.error: BaseException | None = None
        self.is_over = False
        self.start()
        self._is_idle.acquire()

    # --- in its thread ---

    def run(self) -> None:
        """Move; it is told of every call what comes of that."""
        try:
            for _ in self.mover.run():
                pass
        except BaseException as error:  # noqa: BLE001  # the test raises it
            self.error = error
        finally:
            self.is_over = True
            self._is_idle.release()

    def ask(self, caller: SteppedCaller | None, requests: Sequence[Any]) -> list[Any]:
        """Wait until the test says what was answered."""
        self._asked = None if caller is None else (caller, requests)
        self._is_sent = False
        self._is_idle.release()
        self._turn.acquire()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    # --- in that of the test ---

    def step(self) -> None:
        """Send what is to be asked, or take the answer, if there is one, and go on to the next call."""
        if self._asked is None:
            self._go_on([])
            return
        caller, requests = self._asked
        try:
            if not caller.is_there:
                raise Unreachable("It is gone.")
            if not self._is_sent:
                self._is_sent = True
                caller.send(requests)
                return
            answers = caller.answers(requests)
        except OpsqError as error:
            self._go_on(error)
        else:
            if answers is not None:
                self._go_on(answers)

    def kill(self) -> None:
        """End it, and its connections."""
        if not self.is_over:
            self._go_on(Killed())
        self.join()
        for caller in self.callers:
            if caller.is_there:
                caller.rig.disconnect(caller.peer)

    def _go_on(self, answer: list[Any] | BaseException) -> None:
        self._answer = answer
        self._turn.release()
        self._is_idle.acquire()


def pause(_: float) -> None:
    """What a stepped mover does instead of sleeping."""
    thread = threading.current_thread()
    assert isinstance(thread, SteppedMover)
    thread.ask(None, [])
