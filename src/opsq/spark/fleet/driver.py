"""The fleet: tasks of a Spark job that are consumers. This file starts them from the driver and sums up their results.

It must not process chunks itself (`tasks` does, on executors), nor know how progress is shown. The tasks run in
`mapInArrow`, which works in a session of Spark Connect too.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import astuple, replace

from opsq.client.core.outcome import is_awaited
from opsq.errors import OpsqError, UsageError, WorkFailed
from opsq.ids import parse_submission_id
from opsq.runner.polled_consumer import Until
from opsq.runner.pool_options import ConsumeOptions
from opsq.spark.fleet.chunk_function import Frames
from opsq.spark.fleet.function_process import pickled
from opsq.spark.fleet.tasks import COLUMNS, Plan, TaskSummary, work
from opsq.spark.fleet.watch import FleetWatch, is_seen
from opsq.spark.session.spark_session import is_remote
from opsq.spark.source.daemon_address import resolve
from opsq.spark.source.result_fetch import find_source
from opsq.spark.source.source_options import DaemonOptions
from opsq.spark.spark_errors import first_line
from opsq.units import counted, parse_duration, parse_size

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from opsq.client.sync.queue import Queue
    from opsq.wire.messages import Counts


_DESCRIPTION, _GROUP, _INTERRUPTS = "spark.job.description", "spark.jobGroup.id", "spark.job.interruptOnCancel"
_METRICS = ("completed", "failed", "dead", "released", "rows")
"""Sums over the tasks that listeners of Spark see, as the observed metrics "opsq"."""
_MORE_THAN_CORES = 1 << 20
"""Rows of a range large enough that every core of a cluster gets a part."""


class FleetSummary(NamedTuple):
    """The outcome of a fleet, by task and in total."""

    tasks: list[TaskSummary]
    seconds: float
    """From the start of the job to its end."""
    before: Counts | None = None
    """What the daemon counted of the submission before it; None: it is a fleet for all submissions."""
    after: Counts | None = None
    """And after it; None: also if the daemon did not answer, or the submission was removed."""

    def as_frame(self, spark: SparkSession) -> DataFrame:
        """A row for each task, with the fields of `TaskSummary`."""
        return spark.createDataFrame([astuple(task) for task in self.tasks], COLUMNS)

    @property
    def completed(self) -> int:
        """Chunks of the submission that were completed meanwhile, by tasks that were lost and other consumers too.

        Without a submission, those that tasks tell of.
        """
        return self._counted(lambda counts: counts.completed_count, sum(task.completed for task in self.tasks))

    @property
    def failed(self) -> int:
        """Attempts that failed; a chunk may fail several times."""
        return sum(task.failed for task in self.tasks)

    @property
    def dead(self) -> int:
        """Chunks of the submission that died meanwhile, of losses too; without one, those that tasks tell of."""
        return self._counted(lambda counts: counts.dead_count, sum(task.dead for task in self.tasks))

    @property
    def released(self) -> int:
        """Chunks returned without counting an attempt."""
        return sum(task.released for task in self.tasks)

    @property
    def rows(self) -> int:
        """Rows of tables and frames for which a function returned a result, as tasks tell; of repetitions, too."""
        return sum(task.rows for task in self.tasks)

    def _counted(self, count: Callable[[Counts], int], by_tasks_count: int) -> int:
        """What the daemon counted of the submission; what tasks tell of if there is none, or it is not known any more.

        Of all submissions the daemon's counts would be those of every consumer.
        """
        if self.before is None or self.after is None or count(self.after) < count(self.before):
            return by_tasks_count
        return count(self.after) - count(self.before)


def consume(
    spark: SparkSession,
    *,
    command: Sequence[str] | None = None,
    function: Callable[[Any], Any] | None = None,
    strategy: object = "Random",
    submission: int | str | None = None,
    tasks: int | None = None,
    frames: Frames = "auto",
    schema: str | StructType | pa.Schema | None = None,
    timeout: float | str | None = None,
    memory: int | str | None = None,
    concurrency: int = 1,
    lease: float | str | None = None,
    until: Until = "empty",
    deadline_s: float | None = None,
    progress: bool = True,
    options: ConsumeOptions | None = None,
    state_dir: str | None = None,
    address: str | None = None,
    token: str | None = None,
) -> FleetSummary:
    """Process chunks on the executors: each task of one job is a consumer until its strategy has no chunks left.

    Args:
        spark: the session, also one of Spark Connect; then executors and this process must reach the daemon at one
            `address`.
        command: a program and its arguments, run for each chunk: the chunk is its stdin, its stdout the result.
        function: called for each chunk instead of a program, in a process of its own; an exception fails the chunk
            (`opsq.Retry` and `opsq.Bury` decide whether it is retried), and so does the death of the process, which is
            then replaced. It returns an Arrow table, a pandas frame, bytes or None; tables are written in the format of
            the chunks. A coroutine function (`async def`) is awaited there, on one event loop.
        strategy: the order in which chunks are wanted: text, or a tree of `opsq.strategy`.
        submission: only chunks of this one; None: of all.
        tasks: the number of consumers; those beyond the cores of the session wait until others have ended. None: one
            per core.
        frames: what the function gets: "arrow" tables, "pandas" frames, "bytes"; "auto": Arrow tables for chunks of a
            DataFrame, bytes for others.
        schema: declares columns of the tables and frames that the function returns: DDL ("score DOUBLE"), a
            StructType or an Arrow schema. A column named like one of the chunks has that one's type and need not be
            declared, unless it has another type. Each result must then have the declared columns and no unknown ones;
            one that does not fit fails its chunk by the name of the column. None: columns that the chunks lack keep
            the types that they come with.
        timeout: a chunk for which the function or program runs longer fails: seconds, or text such as "90s".
        memory: a chunk for which the function uses more memory fails: bytes, or text such as "2G". What its process has
            resident counts (on Linux without files that it has mapped), not what processes have that it starts.
        concurrency: for how many chunks at once each task awaits a coroutine function. A chunk is completed when it
            ends; one that exceeds `timeout` is cancelled alone, and the death of the process costs each chunk in it an
            attempt. Limits (`opsq limit`) and strategies count chunks, over all tasks: give each chunk one call.
        lease: reserve chunks by leases of this length, longer than `timeout`: seconds, or text. The chunks of a killed
            executor then count against limits until their leases expire, and those of a function that has died until
            their timeout, as long as a service may be busy with calls that nobody waits for any more. None: they are
            free at once.
        until: "empty": no chunk is free, reserved by any consumer or waiting for a retry; "idle": no chunk can be
            reserved; "": only the deadline ends it.
        deadline_s: start no chunk after so many seconds; running chunks are finished.
        progress: show on a terminal or in a notebook how many chunks and rows are done, the rate, the time left, and
            failures.
        options: how programs are run and judged (records as arguments, exit statuses, run time, logs); its strategy,
            submission and ends are ignored. Without it each task runs one program at a time.
        state_dir: of the daemon, if every executor sees its socket.
        address: of the daemon: host:port or tls://host:port?ca=FILE that every executor can reach; FILE is at the same
            path on all of them.
        token: for TCP; it appears in no plan, error or log.

    Returns:
        What each task did, and sums. With a `submission`, `completed` and `dead` are what the daemon counted of it
        meanwhile: by tasks that were lost, and by any other consumers of it too. Without one they are sums over the
        tasks, in which a task that was lost has nothing. Errors of some tasks are a warning, as long as others ended
        well.

    Raises:
        UsageError: the arguments are invalid.
        Unreachable: the daemon cannot be reached from here or from the executors; the hint says what they need.
        OpsqError: what ended all tasks, such as a command that no executor has, or the job, such as a cancel.

    Effects: returns when every task has ended. Until then the job has the group `opsq-ID` of the submission, by which
        `spark.sparkContext.cancelJobGroup` ends it, unless you have set one; over Spark Connect that is a tag for
        `spark.interruptTag`. Listeners of queries see its sums as the observed metrics `opsq`. A daemon that is away is
        waited for, and after 30 seconds the log `opsq` has a warning. If the job is cancelled, programs are killed and
        chunks released, with one loss counted for those that had started.
    """
    from opsq.spark.formats.schemas import given_schema

    plan = plan_fleet(
        DaemonOptions(state_dir=state_dir, address=address, token=token),
        (options or ConsumeOptions(jobs=1))._replace(
            strategy=str(strategy),
            submission_id=None if submission is None else parse_submission_id(str(submission)),
            until=until,
        ),
        command=command,
        function=function,
        frames=frames,
        schema=None if schema is None else given_schema(schema, spark, name="schema"),
        timeout=timeout,
        memory=memory,
        concurrency=concurrency,
        lease=lease,
        deadline_s=deadline_s,
    )
    try:
        watch = FleetWatch(plan.daemon, plan.options.submission_id, shows_progress=progress and is_seen())
        summary = run_fleet(spark, plan, tasks or cores_of(spark), watch)
    except Exception as error:
        if isinstance(error, OpsqError) or not type(error).__module__.startswith(("py4j", "pyspark")):
            raise
        raise WorkFailed(
            f"Spark ended the job of the fleet: {first_line(str(error))}",
            hint="What is completed stays completed; to go on, consume again. The log of Spark says more.",
        ) from None  # a page of Java
    if warning := ended_early(summary):
        warnings.warn(warning, stacklevel=2)
    return summary


def plan_fleet(
    daemon_options: DaemonOptions,
    options: ConsumeOptions,
    *,
    command: Sequence[str] | None = None,
    function: Callable[[Any], Any] | None = None,
    frames: Frames = "auto",
    schema: StructType | None = None,
    timeout: float | str | None = None,
    memory: int | str | None = None,
    concurrency: int = 1,
    lease: float | str | None = None,
    deadline_s: float | None = None,
) -> Plan:
    """Plan the tasks; see `consume`. The deadline starts now, and the daemon must answer."""
    if (command is None) == (function is None):
        raise UsageError("A fleet needs either a command or a function.")
    if command is not None and (isinstance(command, str) or not command):
        raise UsageError("command is a list: the program and its arguments.", hint='For example ["grep", "-c", "500"].')
    if schema is not None and function is None:
        raise UsageError("schema declares what a function returns.", hint="Results of a command are bytes.")
    if not options.until and deadline_s is None:
        raise UsageError('With until="" only a deadline ends the fleet.', hint="Give deadline_s.")
    timeout_s, memory_bytes = _limit("timeout", timeout, parse_duration), _limit("memory", memory, parse_size)
    if command is not None and memory_bytes is not None:
        raise UsageError(
            "memory limits functions only.", hint='Start a program with a limit: ["prlimit", "--as=2G", …].'
        )
    lease_s = _limit("lease", lease, parse_duration)
    if lease_s is not None and (command is not None or timeout_s is None or timeout_s >= lease_s):
        raise UsageError(
            "lease needs a function and a timeout that is shorter: a chunk that runs longer than its lease is lost."
        )
    if concurrency < 1:
        raise UsageError(f"concurrency is {concurrency}; it must be at least 1.")
    awaited = function is not None and is_awaited(function)
    if concurrency > 1 and not awaited:
        raise UsageError(
            "concurrency is for coroutine functions (async def): several chunks are awaited at once.",
            hint="tasks says for how many chunks at once another function is called.",
        )
    if command is not None and timeout_s is not None:
        options = options._replace(max_runtime_s=timeout_s)
    daemon = resolve(daemon_options)
    declared = None
    with daemon.open() as queue:
        if schema is not None:
            from opsq.spark.formats.schemas import declared_schema

            declared = declared_schema(schema, _chunk_format(queue, options.submission_id))
    return Plan(
        daemon=daemon,
        options=options._replace(stop_after_s=None, claim=""),
        command=None if command is None else tuple(command),
        function=function,
        frames=frames,
        schema=declared,
        timeout_s=timeout_s,
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        concurrency=concurrency if awaited else None,
        lease_s=lease_s,
        ends_at=None if deadline_s is None else time.time() + deadline_s,
    )


def _chunk_format(queue: Queue, submission_id: int | None) -> str:
    """The format of a submission's chunks, as far as it can be known here; results without one are Parquet."""
    with contextlib.suppress(OpsqError):  # over Spark Connect only the server may see the store
        source = None if submission_id is None else find_source(queue, str(submission_id))
        if source is not None and source.chunk_format is not None:
            return source.chunk_format.name
    return "parquet"


def _limit(name: str, given: float | str | None, parse: Callable[[str], float]) -> float | None:
    if given is None:
        return None
    try:
        limit = parse(str(given))
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from error
    if not limit:
        raise UsageError(f"{name} is 0; it must be more, or None for no limit.")
    return limit


class _ByItsPickle:
    """A function that is only its pickle where Spark has sent it: it is loaded by the process that calls it.

    Pickled while Spark pickles the job, its broadcast variables go with that.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (pickled(self._function),)


def run_fleet(spark: SparkSession, plan: Plan, tasks_count: int, watch: FleetWatch | None = None) -> FleetSummary:
    """Run the job and wait for its end. The error of a task is in its summary.

    Args:
        spark: the session.
        plan: of each task.
        tasks_count: how many there are.
        watch: on the same daemon and submission, not entered; for whoever shows its counts.
    """
    if tasks_count < 1:
        raise UsageError(f"{counted(tasks_count, 'task')} are impossible: give at least 1.")
    began_at = time.monotonic()
    if callable(plan.function):
        plan = replace(plan, function=_ByItsPickle(plan.function))

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        names = [column.split()[0] for column in COLUMNS.split(", ")]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                fields = astuple(work(plan, number))
                row = [pa.array([value], pa.int32() if at == 0 else None) for at, value in enumerate(fields)]
                yield pa.RecordBatch.from_arrays(row, names)

    submission_id = plan.options.submission_id
    with watch or FleetWatch(plan.daemon, submission_id) as seen, _described(spark, plan):
        rows = _observed(spark.range(0, tasks_count, 1, tasks_count).mapInArrow(each, COLUMNS)).collect()
    found = sorted((TaskSummary(*row) for row in rows), key=lambda task: task.task)
    counts = (None, None) if submission_id is None else (seen.before, seen.after)
    return FleetSummary(found, time.monotonic() - began_at, *counts)


def _observed(tasks: DataFrame) -> DataFrame:
    """The same rows, whose sums listeners of Spark see; its pages show no figures of Python."""
    from pyspark.sql import functions as sf

    return tasks.observe("opsq", *[sf.sum(name).alias(name) for name in _METRICS])


@contextlib.contextmanager
def _described(spark: SparkSession, plan: Plan) -> Iterator[None]:
    """Spark's own pages say what the job is, and its name cancels it, unless the user has said and named it.

    The name is that of a group of jobs, over Spark Connect a tag, and there the server says what the job is.
    """
    number = plan.options.submission_id
    name, of = ("opsq", "all submissions") if number is None else (f"opsq-{number}", f"submission {number}")
    if is_remote(spark):
        has_tag = name in spark.getTags()
        spark.addTag(name)
        try:
            yield
        finally:
            if not has_tag:
                spark.removeTag(name)
        return
    context = spark.sparkContext
    wanted = {_DESCRIPTION: f"opsq: a fleet on {of}", _GROUP: name, _INTERRUPTS: "true"}
    before = {key: context.getLocalProperty(key) for key in wanted}
    for key in [_DESCRIPTION] if before[_GROUP] else list(wanted):
        context.setLocalProperty(key, before[key] or wanted[key])
    try:
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it


def ended_early(summary: FleetSummary) -> str:
    """A message about what ended some tasks; empty if all ended as planned.

    Raises:
        OpsqError: what ended all of them.
    """
    failures = [failure for task in summary.tasks if (failure := task.failure()) is not None]
    if failures and len(failures) == len(summary.tasks):
        raise failures[0]
    return f"{len(failures)} of {counted(len(summary.tasks), 'task')} ended early. {failures[0]}" if failures else ""


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that the session runs at once.

    Cost: in a session of Spark Connect a small job, which counts the partitions of a range: one per core by default,
        unless spark.sql.leafNodeDefaultParallelism says otherwise on the server.
    """
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    from pyspark.sql import functions as sf

    [row] = (
        spark.range(_MORE_THAN_CORES)
        .select(sf.spark_partition_id().alias("part"))
        .agg(sf.max("part").alias("last"))
        .collect()
    )
    return int(row["last"]) + 1
