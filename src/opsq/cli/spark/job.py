"""A Spark session for one command line: its jobs run in a thread while this one handles signals and shows progress.

It must not know what a job does. PySpark is imported where a session is opened, so that importing this file stays
cheap.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from opsq import errors
from opsq.cli.caller import Caller
from opsq.cli.output.error_report import Exit
from opsq.cli.output.progress import DRAW_S, LINE_S
from opsq.documents.progress_meter import ProgressMeter
from opsq.errors import InputUnreadable, OpsqError, UsageError, WorkFailed
from opsq.options.option import option, option_set
from opsq.options.values import pairs
from opsq.runner.stop_signals import StopSignals
from opsq.spark.spark_errors import LINE_LIMIT, first_line
from opsq.units import counted
from opsq.wire.messages import Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_TICK_S = 0.2
_END_S = 20.0
"""How long a cancelled job may take to end: Spark kills its Python workers some seconds later."""
_GONE_S = 10.0
"""How long a server of Spark Connect may take for a last call."""
_OURS = re.compile(r"opsq\.errors\.(\w+): (.+)")
_FLAGS = {"deadChunks=skip": "--skip-dead", "the option resultFormat": "--result-format"}
"""Options in messages of the data source, and their flags on the command line."""
_REFUSALS = ("AnalysisException", "IllegalArgumentException", "ParseException", "PySparkTypeError", "PySparkValueError")


@option_set
class Session(NamedTuple):
    """How Spark is started; each field is an option."""

    master: str = option(
        "--master URL",
        "Where the executors are: local[N], spark://HOST:PORT, yarn, …, or a Spark Connect sc://HOST:PORT.",
        default="local[*]",
    )
    conf: list[str] = option("--conf KEY=VALUE...", "A setting of Spark; repeatable.")
    spark_logs: bool = option("--spark-logs", "Show the whole log of Spark on stderr.")

    @property
    def is_remote(self) -> bool:
        """Whether paths and files are those of a server of Spark Connect."""
        from opsq.spark.session.spark_session import is_connect

        return is_connect(self.master)

    def settings(self) -> dict[str, str]:
        """The settings given by --conf.

        Raises:
            UsageError: one has no `=`.
        """
        return pairs("--conf", self.conf, "spark.executor.memory=2g")


class SparkJobs:
    """Runs the jobs of a session. Made by `opened`.

    Args:
        caller: of the command line.
        spark: the session.
        signals: entered; they end the running job.
        is_reporting: without a terminal, print a line about the state from time to time.
    """

    def __init__(self, caller: Caller, spark: SparkSession, signals: StopSignals, *, is_reporting: bool) -> None:
        self.spark = spark
        self._caller = caller
        self._signals = signals
        self._is_reporting = is_reporting and not caller.is_quiet

    def run(self, what: str, job: Callable[[], T], look: Callable[[], Counts | None] | None = None) -> T:
        """Run a job in a thread, and show how many chunks are done.

        Args:
            what: the job in a word, for people: reading, working, writing.
            job: called in the thread.
            look: gives the latest counts at once, as signals wait for it; None: there is nothing to count.

        Raises:
            Interrupted: a signal came; the job has been cancelled.
            OpsqError: what ended the job.
        """
        group = f"opsq-{uuid.uuid4().hex}"
        is_there = self._is_there()
        ended: list[T] = []
        failed: list[BaseException] = []

        def body() -> None:
            try:
                if is_there:
                    self.spark.addTag(group)
                else:
                    # makes the session active in this thread, which finds no data source otherwise
                    self.spark.createDataFrame([], "n int")
                    self.spark.sparkContext.setJobGroup(group, f"opsq: {what}", interruptOnCancel=True)
                ended.append(job())
            except BaseException as error:  # noqa: BLE001  # raised again by the waiting thread
                failed.append(error)
            finally:
                self._signals.stop(0)  # only wakes the waiting thread

        before = self._signals.count
        thread = self._thread(body, is_there=is_there)
        thread.start()
        try:
            self._watch(what, thread, look)
        except BaseException:
            self._cancel(group)
            raise
        finally:
            thread.join(_END_S)
            self._signals.count = before
        if failed:
            error = failed[0]
            raise spark_failure(error, is_there=is_there) if isinstance(error, Exception) else error
        return ended[0]

    def _is_there(self) -> bool:
        from opsq.spark.session.spark_session import is_remote

        return is_remote(self.spark)

    @staticmethod
    def _thread(body: Callable[[], None], *, is_there: bool) -> Any:
        if is_there:
            return threading.Thread(target=body, name="opsq-job", daemon=True)
        from pyspark import InheritableThread

        thread: Any = InheritableThread(target=body, name="opsq-job")
        thread.daemon = True
        return thread

    def _watch(self, what: str, thread: Any, look: Callable[[], Counts | None] | None) -> None:
        meter, line_at, look_at = ProgressMeter(), time.monotonic() + LINE_S, 0.0
        with self._caller.progress("chunks" if look else "") as progress:
            bar = progress.add_task(what, total=None) if progress else None
            while thread.is_alive():
                self._signals.wait(_TICK_S)
                self._signals.drain()
                if self._signals.numbers:
                    raise Interrupted(self._signals.last or min(self._signals.numbers))
                now = time.monotonic()
                if look is None or now < look_at:
                    continue
                look_at = now + DRAW_S
                meter.note(look(), now)
                if progress:
                    text = " ".join(part for part in (what, meter.rate_text(), meter.left_text()) if part)
                    progress.update(bar, description=text, total=meter.total_count, completed=meter.done_count)
                elif self._is_reporting and now >= line_at:
                    line_at = now + LINE_S
                    done = f"{meter.done_count} of {counted(meter.total_count, 'chunk')} done"
                    parts = [done, meter.rate_text(), meter.left_text()]
                    print(f"opsq: {', '.join(part for part in parts if part)}", file=sys.stderr, flush=True)

    def _cancel(self, group: str) -> None:
        if self._is_there():
            _bounded(lambda: self.spark.interruptTag(group))
        else:
            with suppress(Exception):  # the JVM may be gone, which ends the job too
                self.spark.sparkContext.cancelJobGroup(group)


class Interrupted(Exit):
    """A signal ended the job."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def opened(
    caller: Caller, session: Session, *, is_short: bool = False, is_reporting: bool = False
) -> Iterator[SparkJobs]:
    """A session for one command line; stopped afterwards, with all that it started.

    Raises:
        CommandNotFound: PySpark or Java is missing; the hint says what to install.
        Unreachable: no Spark Connect server answers there.
        UsageError: Spark refuses the master or a setting.
    """
    conf = session.settings()
    from opsq.spark import build_session

    caller.remark("Calling Spark …" if session.is_remote else "Starting Spark …")
    with tempfile.TemporaryFile() as said:
        try:
            with contextlib.nullcontext() if session.spark_logs else _stderr_to(said):
                spark = build_session(session.master, conf=conf, is_quiet=not session.spark_logs, is_short=is_short)
        except OpsqError:
            raise
        except Exception as error:
            failure = spark_failure(error)
            failure.message = f"{failure.message} {_last_line(said)}".strip()
            raise failure from error
    if not session.spark_logs:
        # PySpark's own logger prints a page on stderr for each refusal
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    try:
        # Spark's own handler of SIGINT would cancel everything and leave the rest to chance.
        with StopSignals() as signals, warnings.catch_warnings():
            # The Spark Connect client makes warnings of what a JVM logs.
            warnings.filterwarnings("ignore", "WARN ", UserWarning)
            yield SparkJobs(caller, spark, signals, is_reporting=is_reporting)
    finally:
        if session.is_remote:
            _bounded(spark.stop)
        else:
            with suppress(Exception):  # the first error is reported, not what follows from it
                spark.stop()


def _bounded(call: Callable[[], object]) -> None:
    """Call a Spark Connect server a last time, ignoring errors; its client would retry for minutes."""

    def body() -> None:
        with suppress(Exception):  # the first error is reported, not what follows from it
            call()

    thread = threading.Thread(target=body, name="opsq-end", daemon=True)
    thread.start()
    thread.join(_GONE_S)


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to a file: a JVM prints some lines before any setting of its logs applies."""
    sys.stderr.flush()
    ours = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:LINE_LIMIT] if lines else ""


# --- errors of Spark --------------------------------------------------------------------------------------------------


def spark_failure(error: Exception, *, is_there: bool = False) -> OpsqError:
    """The error to report for an exception of Spark: our own error that it wraps, else its first line.

    Args:
        error: the exception.
        is_there: it comes from a Spark Connect server.
    """
    if isinstance(error, OpsqError):
        return error
    text = str(error)
    if "No module named 'opsq'" in text or "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: opsq" in text:
        where = "the server of Spark Connect and of its executors" if is_there else "the executors"
        how = "" if is_there else ", and name that Python by --conf spark.pyspark.python=PATH"
        return UsageError(f"opsq is not installed in the Python of {where}.", hint=f"Install it there{how}.")
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        for option, flag in _FLAGS.items():
            message = message.replace(option, flag)
        kind = getattr(errors, name, OpsqError)
        return kind(message) if isinstance(kind, type) and issubclass(kind, OpsqError) else OpsqError(message)
    condition = getattr(error, "getCondition", lambda: None)() or ""
    message = first_line(text)
    if condition == "PATH_NOT_FOUND":
        return InputUnreadable(
            message, hint="The Spark Connect server reads: give a path that it sees." if is_there else ""
        )
    if type(error).__name__ in _REFUSALS:
        return UsageError(message)
    hint = "See the log of the Spark Connect server." if is_there else "--spark-logs shows its logs."
    return WorkFailed(f"Spark failed: {message}", hint=hint)
