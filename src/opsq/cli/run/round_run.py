"""Runs a round: feeds inputs, runs programs and delivers results at the same time, until it is done or is ended.

The programs run in this thread, the only one that gets signals; feeding and delivering have one each. It must not
report how the round ended.
"""

from __future__ import annotations

import copy
import os
import signal
import socket
import sys
import threading
from typing import NamedTuple

from opsq.cli.caller import Caller
from opsq.cli.output.error_report import as_failure
from opsq.cli.output.progress import WorkViewer
from opsq.cli.output.result_writer import ByteSink, JsonSink
from opsq.cli.run.delivery import Delivery
from opsq.cli.run.feed import Feeder, Stopped
from opsq.cli.run.rounds import ROUND_KEYS, Round
from opsq.client.sync.producer import Producer
from opsq.content.output_file import STDOUT, open_output
from opsq.content.result_shaping import ResultShaping
from opsq.content.splitter import Splitting
from opsq.errors import OpsqError, WorkFailed
from opsq.runner.pool import Connect, consume
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.progress import ChunkEnd, PoolProgress
from opsq.runner.stop_signals import StopSignals
from opsq.runner.tally import Outcome

RECONNECT_S = 30.0
"""How long a daemon that goes away may take to come back before the round fails."""
_END_S = 1.0
"""How long to wait for a stopped thread, which may be blocked by a reader that does not read."""


class RunPlan(NamedTuple):
    """What the command line asks for."""

    command: list[str]
    options: ConsumeOptions
    paths: list[str]
    splitting: Splitting
    output: str | None
    shaping: ResultShaping
    is_resumable: bool
    is_fresh: bool
    """Forget what was done before."""
    is_skipping: bool
    """Leave out dead chunks."""
    is_keeping: bool
    """Continue after dead chunks."""
    is_reporting: bool


class Ended(NamedTuple):
    """How it ended."""

    outcome: Outcome
    failure: OpsqError | None
    signal: int
    """Which stopped it; 0: none."""
    is_delivered: bool
    """All results are written."""
    is_reader_gone: bool
    """Nobody reads stdout any more."""
    written_bytes: int
    json_sink: JsonSink | None


class RoundRun:
    """One run of a round: feeds, runs and delivers until it has ended."""

    def __init__(self, caller: Caller, connect: Connect, round_: Round, plan: RunPlan) -> None:
        self._caller = caller
        self._connect = connect
        self._round = round_
        self._plan = plan
        self._signals = StopSignals()
        self._reader = Producer(lambda: connect(name=""), reconnect_s=RECONNECT_S)
        self._handing = Producer(lambda: connect(name=""), reconnect_s=RECONNECT_S)
        self._delivery = Delivery(self._reader, self._delivered, is_skipping=plan.is_skipping)
        self._feeder = Feeder(
            round_,
            self._handing,
            plan.paths,
            plan.splitting,
            self._delivery.add,
            self._warn,
            jobs=plan.options.jobs or os.cpu_count() or 1,
            is_bounded=not plan.is_resumable,
        )
        self._viewer: WorkViewer | None = None
        self._json_sink: JsonSink | None = None
        self._written_bytes = 0
        self._has_found = False
        """All of the input was submitted by an earlier run."""
        self._is_stopping = False
        self._is_delivered = False
        self._is_reader_gone = False
        self._failure: OpsqError | None = None

    def run(self) -> Ended:
        """Do everything. Effects: no thread or program is left behind, except a thread that is blocked writing."""
        plan = self._plan
        outcome = Outcome(0, 0, 0, 0)
        threads = [
            threading.Thread(target=self._feed, name="opsq-feed", daemon=True),
            threading.Thread(target=self._deliver, name="opsq-deliver", daemon=True),
        ]
        self._find_work()  # before programs start, so that they process nothing that is being forgotten
        if self._caller.is_json and plan.output is None:
            self._json_sink = JsonSink()
        options = plan.options._replace(
            strategy=self._round.strategy,
            counted_pair=self._round.pair,
            name=f"{self._round.consumer_stem}{socket.gethostname()}-{os.getpid()}",
        )
        try:
            with self._signals, _Viewer(self._caller, plan) as viewer:
                self._viewer = viewer
                for thread in threads:
                    thread.start()
                outcome = consume(self._connect, plan.command, options, viewer=viewer, signals=self._signals)
                if self._signals.numbers and outcome.signal:
                    viewer.hurry()
        except OpsqError as error:
            self._failure = self._failure or error
        finally:
            self._is_stopping = True
            self._feeder.stop()
            self._delivery.stop()
            self._reader.close()
            self._handing.close()
            for thread in threads:
                thread.join(_END_S)
        number = 0 if not self._signals.numbers else self._signals.last or min(self._signals.numbers)
        return Ended(
            outcome,
            self._failure,
            number,
            self._is_delivered,
            self._is_reader_gone,
            self._written_bytes,
            self._json_sink,
        )

    def _find_work(self) -> None:
        """Continue with what exists of the round, unless it is to start over."""
        if self._plan.is_fresh:
            self._round.forget_all()
        elif self._plan.is_resumable:
            self._has_found = self._round.receipt is not None
            for segment in self._round.find():
                self._round.check_own(segment.submission_id)
                self._has_found = True
                self._delivery.add(segment.submission_id)

    def _feed(self) -> None:
        try:
            if not self._has_found:
                self._feeder.feed()
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001  # reported when this thread was joined
            self._end_by(error)
        else:
            self._delivery.end()

    def _warn(self, text: str) -> None:
        if text and self._viewer is not None:
            self._viewer.remark(text)

    def _deliver(self) -> None:
        try:
            try:
                self._write_results()
            except WorkFailed:
                if self._plan.is_keeping:
                    self._delivery.pass_over()
                raise
        except BrokenPipeError:
            self._is_reader_gone = True
            self._signals.stop(signal.SIGPIPE, is_urgent=True)
        except Exception as error:  # noqa: BLE001  # reported when this thread was joined
            self._end_by(error)
        else:
            self._is_delivered = True
            self._signals.stop(0)

    def _write_results(self) -> None:
        if self._json_sink is not None:
            self._delivery.deliver(self._json_sink)
            self._written_bytes = self._json_sink.written_bytes
        else:
            output = self._plan.output
            with open_output(STDOUT if output is None else output) as out:
                sink = ByteSink(out, self._plan.shaping)
                self._delivery.deliver(sink)
            self._written_bytes = sink.written_bytes

    def _end_by(self, error: Exception) -> None:
        if not self._is_stopping:
            self._failure = self._failure or as_failure(error)
            self._signals.stop(0, is_urgent=True)

    def _delivered(self, submission_id: int) -> None:
        self._round.check_own(submission_id)
        if not self._plan.is_resumable and not self._round.has_dead(submission_id):
            self._round.forget(submission_id)
        self._feeder.delivered(submission_id)


class _Viewer(WorkViewer):
    """Shows the work, except what would be mixed up with the results."""

    def __init__(self, caller: Caller, plan: RunPlan) -> None:
        is_quiet = caller.is_quiet
        if plan.output is None and sys.stdout.isatty():
            caller = copy.copy(caller)
            caller.is_quiet = True
        super().__init__(caller, is_reporting=plan.is_reporting, is_drawing=not plan.options.feeding.shares_terminal)
        self._is_quiet = is_quiet

    def look(self, view: PoolProgress) -> None:
        """Show it without the metadata by which rounds are found."""
        named = [
            (number, {key: value for key, value in pairs.items() if key not in ROUND_KEYS})
            for number, pairs in view.submissions
        ]
        super().look(view._replace(submissions=named))

    def ended(self, end: ChunkEnd) -> None:
        """Print nothing: with --json there is one document."""
