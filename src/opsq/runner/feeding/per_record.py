"""Runs a program for the records of a chunk: a record, or as many as fit, are its arguments.

A free slot takes the next records of a chunk that is at work, so one chunk fills all slots; what the runs write is put
together in order. This file must not start processes itself (process/ does), and never involves a shell.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from opsq.errors import OpsqError, Refused, WorkFailed
from opsq.runner.feeding.invocation import value_texts
from opsq.runner.feeding.programs import Feeding, Programs, Setup
from opsq.runner.feeding.record_arguments import ChunkRecords, RecordRuns, record_template, room_bytes
from opsq.runner.process.child import Child, Finished, Said, Token
from opsq.runner.process.pipes import Capture, Output, Range

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_PART_S = 0.05
"""How long the runs take together that share a pair of pipes: a start then costs a process and little else."""
_PART_COUNT = 256
_PART_BYTES = 1 << 20
_COPY_BYTES = 1 << 18
_WAITING_BYTES = 64 << 20
"""How much output of a chunk may wait for that of an earlier run; no more of its records are run then."""


class _Part:
    """Some runs of a chunk, one after the other; the arguments of each."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.argvs: list[Sequence[str | bytes]] = []
        self.places: list[str] = []
        """What records each has."""
        self.at = 0
        """How many were started."""
        self.ended: Finished | None = None
        self.rest = b""
        """The beginning of a line that was said."""

    def __iter__(self) -> Iterator[Sequence[str | bytes]]:
        return self

    def __next__(self) -> Sequence[str | bytes]:
        if self.at == len(self.argvs):
            raise StopIteration
        self.at += 1
        return self.argvs[self.at - 1]

    @property
    def place(self) -> str:
        """What records the present run has."""
        return self.places[max(self.at, 1) - 1]

    def said(self, piece: bytes) -> None:
        """Pass on whole lines: other parts of the chunk speak too."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if lines and self.work.said is not None:
            self.work.said(b"\n".join(lines) + b"\n")

    def say_rest(self) -> None:
        """Pass on what has no line end."""
        if self.rest and self.work.said is not None:
            self.work.said(self.rest)
        self.rest = b""


class _Work(Token):
    """A chunk that is at work; what `start` gives."""

    def __init__(
        self, chunk: Chunk, runs: RecordRuns, environment: dict[str, str], said: Said | None, result: Capture
    ) -> None:
        super().__init__()
        self.submission_id = chunk.submission_id
        self.runs = runs
        self.environment = environment
        self.said = said
        self.children: dict[Child, _Part] = {}
        """What runs now."""
        self.parts: deque[_Part] = deque()
        """Those whose output is not with the result yet, in order."""
        self.waiting_bytes = 0
        """How much output of theirs there is."""
        self.held_up: _Part | None = None
        """One for which the system had no room."""
        self.is_over = False
        """Nothing more is started."""
        self.error: OpsqError | None = None
        """Why nothing more can be started."""
        self.place = ""
        self.status = 0
        """The first status of a run that is not 0, and a good end all the same."""
        self.failed: _Part | None = None
        """The first part, in the order of records, that did not end well."""
        self.stderr_tail = b""
        self.result = result

    def drop_parts(self) -> None:
        """Free the outputs that are no part of the result."""
        for part in self.parts:
            if part.ended is not None:
                part.ended.stdout.close()
        self.parts.clear()


class PerRecord(Programs):
    """One run per record, or per batch of records; as many at once as there are slots.

    Args:
        command: may have all placeholders but `{in}` and `{out}`; where `{}` stands, or else at the end, records go.
        feeding: how many at once, and what ends one.

    Raises:
        UsageError: see `record_template`.
    """

    def __init__(self, command: Sequence[str], feeding: Feeding, setup: Setup) -> None:
        self._template = record_template(command, feeding)
        self._batch_count = feeding.args_count
        self._separator = feeding.separator
        super().__init__(feeding, setup)
        self._setup = setup
        self._works: dict[Child, _Work] = {}
        """What is at work, the longest first."""
        self._work_of: dict[Child, _Work] = {}
        """By child."""
        self._run_s: float | None = None
        """How long a run takes, on average."""
        self._done: list[Finished] = []

    @property
    def slots_count(self) -> int:
        """See `Programs.slots_count`: one more than there are, when what is at work leaves a slot free."""
        return len(self._works) + (len(self._work_of) < self._jobs)

    def start(self, chunk: Chunk, stdin: bytes | Range, said: Said | None = None) -> Child:
        environment = self._environments.of(chunk)
        then = self._then_path()
        if then:
            environment["OPSQ_THEN"] = then
        try:
            values = value_texts(chunk, self._template.names, environment)
        except WorkFailed as error:
            return self._supervisor.start_nothing(error)
        try:
            records = ChunkRecords(stdin, self._separator, len(chunk.header))
        except OSError as error:
            raise Refused(f"Cannot hold one more chunk open: {error.strerror}.") from error
        runs = RecordRuns(records, self._template.cut(values), self._batch_count, room_bytes(environment))
        work = _Work(chunk, runs, environment, said, self._setup.capture())
        part = self._next_part(work)
        try:
            if part is not None:
                self._begin(part)
        except BaseException:
            records.close()
            raise
        self._attachments.use(work.submission_id)
        self._works[work] = work
        self._then[work] = then
        if part is None:
            self._settle(work)
        self._spread()
        return work

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _next_part(self, work: _Work) -> _Part | None:
        """Take the next runs of a chunk, as many as are soon over; None: there is none."""
        part = _Part(work)
        count = 1 if self._run_s is None else max(1, min(_PART_COUNT, int(_PART_S / max(self._run_s, 1e-5))))
        size_bytes = 0
        try:
            while len(part.argvs) < count and size_bytes < _PART_BYTES:
                argv = next(work.runs)
                part.argvs.append(argv)
                part.places.append(work.runs.where)
                size_bytes += sum(map(len, argv))
        except StopIteration:
            work.is_over = True
        except OpsqError as error:
            work.is_over = True
            work.error, work.place = error, work.runs.where if isinstance(error, WorkFailed) else ""
        return part if part.argvs else None

    def _begin(self, part: _Part) -> None:
        work = part.work
        child = self._supervisor.start_series(part, work.environment, said=part.said, goes_on=self._setup.completes)
        work.children[child] = part
        work.parts.append(part)
        self._work_of[child] = work

    def _spread(self) -> None:
        """Give free slots the next runs of what is at work, the oldest chunk first."""
        for work in self._works.values():
            while not work.is_over or work.held_up is not None:
                if len(self._work_of) >= self._jobs:
                    return
                if work.waiting_bytes > _WAITING_BYTES:
                    break
                part = work.held_up or self._next_part(work)
                work.held_up = None
                if part is None:
                    break
                part.at = 0
                try:
                    self._begin(part)
                except Refused as error:
                    if self._work_of:
                        work.held_up = part
                        return
                    work.is_over, work.error = True, error
                except OpsqError as error:
                    work.is_over, work.error = True, error

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _poll(self, timeout_s: float | None) -> list[Finished]:
        for ended in self._supervisor.poll(0.0 if self._done else timeout_s):
            work = self._work_of.pop(ended.child, None)
            if work is None:
                self._done.append(ended)
                continue
            part = work.children.pop(ended.child)
            part.ended = ended
            work.waiting_bytes += ended.stdout.length
            part.say_rest()
            run_s = ended.run_s / part.at
            self._run_s = run_s if self._run_s is None else 0.8 * self._run_s + 0.2 * run_s
            if not self._is_good(ended):
                work.is_over, work.held_up = True, None
            self._join(work)
        self._spread()
        for work in [
            work for work in self._works.values() if work.is_over and not work.children and work.held_up is None
        ]:
            self._settle(work)
        done, self._done = self._done, []
        return done

    def _is_good(self, ended: Finished) -> bool:
        return ended.error is None and ended.exit_status is not None and self._setup.completes(ended.exit_status)

    def _join(self, work: _Work) -> None:
        """Append the outputs that are next to the result, in the order of records, up to the first part that failed."""
        while work.failed is None and work.parts and (ended := work.parts[0].ended) is not None:
            part = work.parts.popleft()
            work.waiting_bytes -= ended.stdout.length
            try:
                _append(work.result, ended.stdout)
            except OpsqError as error:
                work.is_over, work.held_up, work.error, work.place = True, None, error, ""
            work.stderr_tail = ended.stderr_tail
            work.status = work.status or ended.exit_status or 0
            if not self._is_good(ended):
                work.failed = part

    def _settle(self, work: _Work) -> None:
        """Report the end of a chunk of which nothing runs any more."""
        del self._works[work]
        work.runs.records.close()
        self._attachments.let_go(work.submission_id)
        work.drop_parts()
        run_s = (time.monotonic_ns() - work.started) / 1e9
        finished = Finished(work, work.status, None, work.result.output(), work.stderr_tail, run_s, None)
        if work.failed is not None and (ended := work.failed.ended) is not None:
            finished = finished._replace(
                exit_status=ended.exit_status, signal=ended.signal, error=ended.error, where=work.failed.place
            )
        elif work.error is not None:
            finished = finished._replace(exit_status=None, stderr_tail=b"", error=work.error, where=work.place)
        self._done.append(finished)

    # --- ending -------------------------------------------------------------------------------------------------------

    def terminate(self, child: Child) -> None:
        self._tell(child, self._supervisor.terminate)

    def kill(self, child: Child) -> None:
        self._tell(child, self._supervisor.kill)

    def _tell(self, child: Child, end: Callable[[Child], None]) -> None:
        work = self._works.get(child)
        if work is None:
            return
        if not work.is_over or work.held_up is not None:
            work.is_over, work.held_up, work.error, work.place = (
                True,
                None,
                WorkFailed("it was ended before its last record"),
                "",
            )
        for running in tuple(work.children):
            end(running)

    def close(self, *, at_once: bool = False) -> None:
        super().close(at_once=at_once)
        for work in self._works.values():
            work.runs.records.close()
            work.drop_parts()
            work.result.output().close()
        self._works.clear()
        for finished in self._done:
            finished.stdout.close()


def _append(result: Capture, output: Output) -> None:
    """Put an output at the end of a result, and free it."""
    try:
        if output.fd < 0:
            result.add(output.memory)
        else:
            for offset in range(0, output.length, _COPY_BYTES):
                result.add(os.pread(output.fd, _COPY_BYTES, offset))
    finally:
        output.close()
