"""Keeps a long-lived program, a server, in each slot, and feeds it chunk after chunk; one that ends is replaced.

What is written and heard is in server_protocol.py, what waits for which server in server_slot.py. This file must not
judge what an answer means.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from opsq.clock import MonoNs
from opsq.errors import OpsqError, Refused, UsageError, WorkFailed
from opsq.runner.feeding.invocation import Template
from opsq.runner.feeding.programs import Feeding, Programs, Setup
from opsq.runner.feeding.server_protocol import FrameReader, FrameWriter, RecordReader, RecordWriter
from opsq.runner.feeding.server_slot import AnswerSink, ServerChunk, ServerSlot
from opsq.runner.process.child import Child, Finished, Said
from opsq.runner.process.pipes import TAIL_BYTES, Output, Range

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_DEPTH_LIMIT = 32
_DEPTH_S = 0.02
"""At most this much work waits in the pipe of a server; more stays with the daemon, for others."""
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 30.0
"""Between the starts of a server that ends before it has answered anything."""
_DEAF_S = 1.0
"""How long a server that has closed its stdin has to end by itself."""
_END_S = 3.0
"""How long a server has at the end after its stdin was closed, and a third of it after SIGTERM."""

_log = logging.getLogger("opsq")


class ServerPool(Programs):
    """One server per slot, started when there is something for it.

    Args:
        command: has no placeholders.
        feeding: which protocol, and what ends a record.

    Raises:
        UsageError: placeholders, or a delimiter that cannot be used.
    """

    def __init__(self, command: Sequence[str], feeding: Feeding, setup: Setup) -> None:
        check_server(command)
        self._recording = RecordWriter(feeding.separator) if feeding.server == "records" else None
        super().__init__(feeding, setup)
        self._framing = FrameWriter(self._attachments.path)
        self._command = list(command)
        self._separator = feeding.separator
        self._setup = setup
        self._slots = [ServerSlot(self._answered, self._deaf) for _ in range(setup.jobs)]
        self._slot_of: dict[Child, ServerSlot] = {}
        self._unwritten: set[ServerSlot] = set()
        """Slots whose server is at work already; they are written to once a turn."""
        self._due: set[ServerSlot] = set()
        """Slots with a `due_at`."""
        self._done: list[Finished] = []
        self._service_s: float | None = None
        """How long a chunk takes, on average."""

    @property
    def slots_count(self) -> int:
        return self._jobs * self._depth

    @property
    def _depth(self) -> int:
        """How many chunks a server has at once.

        Where records are counted it is 1, or one too many would go to the next chunk unseen.
        """
        if self._recording is not None or self._service_s is None:
            return 1
        return max(1, min(_DEPTH_LIMIT, int(_DEPTH_S / max(self._service_s, 1e-6))))

    # --- control ------------------------------------------------------------------------------------------------------

    def start(self, chunk: Chunk, stdin: bytes | Range, said: Said | None = None) -> Child:
        then = ""
        if self._recording is not None:
            question = self._recording.question(chunk, stdin)
        else:
            then = self._then_path()
            question = self._framing.question(chunk, stdin, then)
        if self._recording is not None and not question.records_count:
            return self._supervisor.start_nothing()
        if isinstance(question.source, Range):
            try:
                question.source = question.source._replace(fd=os.dup(question.source.fd))
            except OSError as error:
                raise Refused(f"Cannot hold one more chunk open: {error.strerror}.") from error
        slot = min(self._slots, key=_load)
        fed = ServerChunk(slot, chunk, question, said)
        self._ask(fed)
        try:
            if slot.server is None and slot.due_at is None:
                self._begin(slot)
            elif slot.asked:
                self._unwritten.add(slot)
            else:
                self._write(slot)
        except OpsqError:
            slot.waiting.extendleft(reversed(slot.take_back()))
            slot.waiting.remove(fed)
            slot.finish(fed)
            raise
        self._attachments.use(fed.submission_id)
        self._then[fed] = then
        return fed

    def _ask(self, fed: ServerChunk) -> None:
        fed.question.answer = self._setup.capture()
        fed.slot.waiting.append(fed)

    def _begin(self, slot: ServerSlot) -> None:
        """Start the server of a slot, which reads what waits there."""
        language = FrameReader(slot) if self._recording is None else RecordReader(slot, self._separator)
        slot.is_proven = False
        slot.server = self._supervisor.start_lasting(
            self._command, slot, AnswerSink(language), self._environments.base, said=slot.said
        )
        self._slot_of[slot.server] = slot

    def _write(self, slot: ServerSlot) -> None:
        # Where records are counted, early output must not be taken for the answer to what is asked now.
        if slot.server is not None and (self._recording is None or self._supervisor.listen(slot.server)):
            self._supervisor.push(slot.server)

    # --- hearing ------------------------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float | None) -> list[Finished]:
        while self._unwritten:
            self._write(self._unwritten.pop())
        if self._due:
            now = time.monotonic()
            due_s = max(min(slot.due_at or now for slot in self._due) - now, 0.0)
            timeout_s = due_s if timeout_s is None else min(timeout_s, due_s)
        for finished in self._supervisor.poll(0.0 if self._done else timeout_s):
            slot = self._slot_of.pop(finished.child, None)
            if slot is None:
                self._done.append(finished)
            else:
                finished.stdout.close()
                self._server_ended(slot, finished)
        if self._due:
            self._do_what_is_due()
        done, self._done = self._done, []
        return done

    def _answered(self, fed: ServerChunk, status: int) -> None:
        slot = fed.slot
        now = MonoNs(time.monotonic_ns())
        run_s = (now - max(fed.started, slot.free_at)) / 1e9
        slot.free_at = now
        slot.pause_s = 0.0
        self._service_s = run_s if self._service_s is None else 0.9 * self._service_s + 0.1 * run_s
        output = fed.question.answer.output() if fed.question.answer is not None else Output(b"")
        said = _tail_of(output) if status else b""
        self._finish(fed, Finished(fed, status, None, output, said, run_s, None))

    def _finish(self, fed: ServerChunk, finished: Finished) -> None:
        fed.slot.finish(fed)
        self._attachments.let_go(fed.submission_id)
        self._done.append(finished)

    def _server_ended(self, slot: ServerSlot, ended: Finished) -> None:
        """Fail what the server was at, and have the rest asked again."""
        slot.server = None
        self._wait_until(slot, None)
        self._unwritten.discard(slot)
        asked = slot.take_back()
        to_blame = [fed for fed in asked if fed.error] or [fed for fed in asked if fed.is_told]
        if asked and not to_blame and not self._has_retired(slot, ended, asked[0]):
            to_blame = asked[:1]
        is_told = any(fed.is_told for fed in to_blame)
        for fed in to_blame:
            asked.remove(fed)
            run_s = (time.monotonic_ns() - max(fed.started, slot.free_at)) / 1e9
            error = fed.error or ended.error
            status = ended.exit_status
            if error is None and status is not None and (status == 0 or self._setup.completes(status)):
                error = WorkFailed("it ended before it had answered")
            _drop_answer(fed)
            self._finish(
                fed,
                Finished(fed, ended.exit_status, ended.signal, Output(b""), ended.stderr_tail, run_s, error, "server"),
            )
        if not to_blame and ended.error is not None:
            _log.warning("opsq: A server was ended between two chunks: %s.", ended.error)
        for fed in reversed(asked):
            _drop_answer(fed)
            if then := self._then.get(fed):
                self._scratch.remove(then)
            fed.question.answer = self._setup.capture()
            slot.waiting.appendleft(fed)
        if not (slot.is_proven or is_told):
            slot.pause_s = min(max(slot.pause_s * 2, _PAUSE_MIN_S), _PAUSE_MAX_S)
        # Without a pause it is due at once, but not from here: an error of the start belongs to a chunk.
        if slot.pause_s or slot.waiting:
            self._wait_until(slot, time.monotonic() + slot.pause_s)

    def _has_retired(self, slot: ServerSlot, ended: Finished, next_fed: ServerChunk) -> bool:
        """Whether a server ended of its own will between two answers.

        Its successor is blamed if it does so without any.
        """
        has_begun = next_fed.question.answer is not None and next_fed.question.answer.length > 0
        return slot.is_proven and ended.is_success and not has_begun

    def _deaf(self, slot: ServerSlot) -> None:
        self._wait_until(slot, time.monotonic() + _DEAF_S)

    def _wait_until(self, slot: ServerSlot, instant: float | None) -> None:
        slot.due_at = instant
        if instant is None:
            self._due.discard(slot)
        else:
            self._due.add(slot)

    def _do_what_is_due(self) -> None:
        now = time.monotonic()
        for slot in [slot for slot in self._due if slot.due_at is not None and slot.due_at <= now]:
            self._wait_until(slot, None)
            if slot.server is not None:
                self._supervisor.give_up(
                    slot.server, WorkFailed("it has closed its stdin, and neither answered nor ended")
                )
            elif slot.waiting:
                self._begin_again(slot)

    def _begin_again(self, slot: ServerSlot) -> None:
        try:
            self._begin(slot)
        except OpsqError as error:
            slot.waiting.extendleft(reversed(slot.take_back()))
            fed = slot.waiting.popleft()
            _drop_answer(fed)
            self._finish(fed, Finished(fed, None, None, Output(b""), b"", 0.0, error))
            if slot.waiting:
                self._wait_until(slot, time.monotonic() + _PAUSE_MIN_S)

    # --- ending -------------------------------------------------------------------------------------------------------

    def terminate(self, child: Child) -> None:
        """See `Programs.terminate`.

        The server ends with the chunk that it works on; what it was asked besides is asked again.
        """
        self._tell(child, self._supervisor.terminate)

    def kill(self, child: Child) -> None:
        self._tell(child, self._supervisor.kill)

    def _tell(self, child: Child, end: Callable[[Child], None]) -> None:
        if not isinstance(child, ServerChunk):
            return
        if child in child.slot.waiting:
            child.slot.waiting.remove(child)
            _drop_answer(child)
            self._finish(
                child, Finished(child, None, None, Output(b""), b"", 0.0, WorkFailed("it was ended before it began"))
            )
        elif child in child.slot.asked and child.slot.server is not None:
            # A server hears it once, of however many chunks it is to be ended.
            is_first = not any(fed.is_told for fed in child.slot.asked)
            child.is_told = True
            if is_first or end == self._supervisor.kill:
                end(child.slot.server)

    def close(self, *, at_once: bool = False) -> None:
        """See `Programs.close`.

        A server that has nothing to do is let end: its stdin is closed, then it is terminated, then killed.
        """
        if not at_once:
            self._let_end()
        super().close(at_once=at_once)
        for slot in self._slots:
            for fed in [*slot.take_back(), *slot.waiting]:
                _drop_answer(fed)
                slot.finish(fed)
            slot.waiting.clear()
        for finished in self._done:
            finished.stdout.close()

    def _let_end(self) -> None:
        self._supervisor.unwatch_all()
        for child, slot in self._slot_of.items():
            slot.is_ending = True
            if slot.asked:
                self._supervisor.kill(child)
            else:
                self._supervisor.push(child)
        self._await_ends(_END_S)
        for child in self._slot_of:
            self._supervisor.terminate(child)
        self._await_ends(_END_S / 3)

    def _await_ends(self, limit_s: float) -> None:
        end_at = time.monotonic() + limit_s
        while self._slot_of and (left_s := end_at - time.monotonic()) > 0:
            for finished in self._supervisor.poll(left_s):
                finished.stdout.close()
                self._slot_of.pop(finished.child, None)


def check_server(command: Sequence[str]) -> None:
    """Check that a command can be a server.

    Raises:
        UsageError: it has placeholders.
    """
    names = Template(command).names
    if names:
        raise UsageError(f"{min(names)} belongs to one chunk; a server gets each chunk by its protocol.")


def _load(slot: ServerSlot) -> tuple[bool, int, bool]:
    """What a slot has to do; the least one gets the next chunk. One that pauses comes last, one that runs first."""
    return slot.due_at is not None, slot.count, slot.server is None


def _drop_answer(fed: ServerChunk) -> None:
    """Forget what has come of an answer."""
    if fed.question.answer is not None:
        fed.question.answer.output().close()


def _tail_of(output: Output) -> bytes:
    if output.fd < 0:
        return output.memory[-TAIL_BYTES:]
    return os.pread(output.fd, TAIL_BYTES, max(output.length - TAIL_BYTES, 0))
