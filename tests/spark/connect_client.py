"""What a client of Spark Connect does, in a process of its own.

PySpark has sessions of one kind only in a process, and tests have others.

Called with the name of a function and its arguments as JSON; what the function returns is printed as JSON. It must not
know how a server is started. The functions of the fleet are here, so Spark pickles them by value, as it does those of a
script or a notebook.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import opsq
import opsq.spark
from opsq.spark.fleet.driver import cores_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPES = """
    id AS n, id % 2 = 0 AS even, CAST(id AS TINYINT) AS t, CAST(id AS SMALLINT) AS s, CAST(id AS INT) AS i,
    CAST(id / 3 AS FLOAT) AS f,
    id / 7 AS d, CAST(id / 4 AS DECIMAL(20, 3)) AS dec, IF(id % 5 = 0, NULL, 'row ' || id) AS text,
    CAST('b' || id AS BINARY) AS bin,
    DATE'2026-03-01' + CAST(id AS INT) AS day,
    TIMESTAMP'2026-03-08 01:30:00' + make_interval(0, 0, 0, 0, CAST(id AS INT)) AS at,
    TIMESTAMP_NTZ'2026-03-08 02:30:00' AS clock, array(id, NULL) AS list, map('k', id) AS pairs,
    named_struct('a', id, 'b', 'x') AS part
"""


def every_type(spark: SparkSession, reach: dict[str, str]) -> dict[str, Any]:
    """Write rows of every type, have them handed back as they are, and read them in every way."""
    rows = spark.sql(f"SELECT {TYPES} FROM range(100)")
    rows.write.format("opsq").mode("append").options(**reach, rowsPerChunk=9, idempotencyKey="every type").save()
    number = opsq.spark.submission_of("every type", **named(reach))
    assert number is not None
    summary = opsq.spark.consume(spark, function=lambda table: table, submission=number, **named(reach))
    opsq.spark.register(spark)
    ways = {
        "plain": spark.read.format("opsq").options(**reach).load(str(number)),
        "schema": spark.read.format("opsq").options(**reach).schema(rows.schema).load(str(number)),
        "same": spark.read.format("opsq").options(**reach, resultSchema="same").load(str(number)),
        "results": opsq.spark.results(spark, number, **named(reach)),
    }
    wanted = rows.orderBy("n").collect()
    chosen = opsq.spark.results(spark, number, columns="text", metadata_columns="_chunk", **named(reach))
    return {
        "completed": summary.completed,
        "tasks": len(summary.tasks),
        "cores": cores_of(spark),
        "rows": len(wanted),
        "equal": {name: frame.orderBy("n").collect() == wanted for name, frame in ways.items()},
        "chosen": chosen.columns,
    }


def fleet(spark: SparkSession, reach: dict[str, str]) -> dict[str, Any]:
    """A program, then a function that gets pandas frames and fails for one chunk."""
    programs = written(
        spark, reach, spark.range(60).selectExpr("id AS n", "'row ' || id AS text"), chunkFormat="jsonl", rowsPerChunk=7
    )
    told = opsq.spark.consume(
        spark, command=["sed", "s/row/line/"], strategy="OldestFirst", submission=programs, tasks=2, **named(reach)
    )
    lines = (
        spark.read.format("opsq")
        .options(**reach, resultFormat="jsonl")
        .schema("n BIGINT, text STRING")
        .load(str(programs))
    )
    frames = written(spark, reach, spark.range(20).selectExpr("id AS n"), rowsPerChunk=5, maxAttempts=1, onDead="keep")

    def doubled(frame: Any) -> Any:
        if (frame["n"] == 7).any():
            raise ValueError("seven is not doubled")
        return frame.assign(m=frame["n"] * 2)

    summary = opsq.spark.consume(spark, function=doubled, frames="pandas", submission=frames, tasks=1, **named(reach))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        doubles = opsq.spark.results(spark, frames, dead_chunks="skip", **named(reach))
    return {
        "by task": [(row.task, row.completed) for row in told.as_frame(spark).orderBy("task").collect()],
        "completed": told.completed,
        "lines": sorted((row.n, row.text) for row in lines.collect()),
        "dead": summary.dead,
        "doubles": sorted((row.n, row.m) for row in doubles.collect()),
        "warned": [str(warning.message) for warning in warned if "result" in str(warning.message)],
    }


def deadly(spark: SparkSession, reach: dict[str, str]) -> dict[str, Any]:
    """A function that one row of twenty kills."""
    rows = written(spark, reach, spark.range(20), rowsPerChunk=1, maxAttempts=2, onDead="keep")

    def killed(table: pa.Table) -> pa.Table:
        import os

        if table.column("id")[0].as_py() == 7:
            os._exit(3)
        return table

    summary = opsq.spark.consume(spark, function=killed, submission=rows, tasks=1, **named(reach))
    return {"completed": summary.completed, "failed": summary.failed, "dead": summary.dead, "rows": summary.rows}


def interrupted(spark: SparkSession, reach: dict[str, str]) -> list[str]:
    """A fleet at work that another thread ends by its tag: what it raised."""
    number = written(spark, reach, spark.range(1), chunkFormat="jsonl")
    found: list[str] = []

    def work() -> None:
        words = ["sleep", "600"]
        found.append(
            raised(lambda: opsq.spark.consume(spark, command=words, submission=number, tasks=1, **named(reach)))
        )

    at_work = threading.Thread(target=work)
    at_work.start()
    with opsq.connect(**named(reach)) as queue:
        while at_work.is_alive() and not queue.submission(number).state().reserved_count:
            time.sleep(0.05)
    spark.interruptTag(f"opsq-{number}")
    at_work.join()
    return found


def streams(spark: SparkSession, reach: dict[str, str], folder: str) -> dict[str, Any]:
    """Write a stream, work off its submission, and read the results and another submission's chunks as streams.

    On a busy machine it is called again, and goes on where it was.
    """
    spark.range(40).selectExpr("id AS n").coalesce(1).write.mode("ignore").json(f"{folder}/in")
    rows = spark.readStream.schema("n BIGINT").json(f"{folder}/in")
    once = {"availableNow": True}
    query = (
        rows.writeStream.format("opsq")
        .options(**reach, rowsPerChunk=4, checkpointLocation=f"{folder}/c1")
        .trigger(**once)
        .start()
    )
    query.awaitTermination()
    with opsq.connect(**named(reach)) as queue:
        made = min(state.submission_id for state in queue.submissions())
        completed = opsq.spark.consume(spark, function=lambda table: table, tasks=1, **named(reach)).completed
        queue.submit([b"%d\n" % number for number in range(12)], idempotency_key="other")

        def drained(source: DataFrame, name: str) -> list[int]:
            sink = source.writeStream.format("parquet").options(
                path=f"{folder}/{name}", checkpointLocation=f"{folder}/{name}-c"
            )
            sink.trigger(**once).start().awaitTermination()
            return sorted(int(row[0]) for row in spark.read.parquet(f"{folder}/{name}").collect())

        results = (
            spark.readStream.format("opsq").options(**reach, maxChunksPerTrigger=3).schema("n BIGINT").load(str(made))
        )
        chunks = spark.readStream.format("opsq").options(
            **reach, mode="chunks", consumer="nightly", maxChunksPerTrigger=5
        )
        return {
            "completed": completed,
            "results": drained(results, "results"),
            "chunks": drained(chunks.schema("value STRING").load(), "chunks"),
        }


def errors(spark: SparkSession, reach: dict[str, str], nowhere: str, token: str) -> dict[str, Any]:
    """Everything that can go wrong, and what it is told as."""
    one = spark.range(3).selectExpr("id AS n")
    unfinished = written(spark, reach, one, idempotencyKey="taken")
    dead = written(spark, reach, one, maxAttempts=1, metadata='{"Kind": "dead"}')
    opsq.spark.consume(spark, function=failing, submission=dead, tasks=1, **named(reach))
    done = written(spark, reach, one, priority=1)
    opsq.spark.consume(spark, function=lambda table: table, submission=done, tasks=1, **named(reach))
    away = {"address": nowhere, "token": token}

    def write(**options: Any) -> Callable[[], object]:
        return lambda: one.write.format("opsq").mode("append").options(**options).save()

    def read(number: object, **options: Any) -> Callable[[], object]:
        return lambda: spark.read.format("opsq").options(**options).load(str(number)).collect()

    cases: dict[str, Callable[[], object]] = {
        "wrong option": write(**reach, rowPerChunk=1),
        "wrong value": write(**reach, rowsPerChunk="many"),
        "overwrite": lambda: one.write.format("opsq").mode("overwrite").options(**reach).save(),
        "key taken": lambda: (
            spark.range(4).write.format("opsq").mode("append").options(**reach, idempotencyKey="taken").save()
        ),
        "no daemon for a write": write(**away),
        "no daemon for a read": read(unfinished, **away),
        "no daemon for a stream": lambda: spark.readStream.format("opsq").options(**away).load(str(unfinished)).columns,
        "unknown": read(252265274856701952, **reach),
        "not finished": read(unfinished, **reach),
        "dead": read(dead, **reach),
        "other columns": lambda: (
            spark.read.format("opsq").options(**reach).schema("other INT").load(str(done)).collect()
        ),
        "results not finished": lambda: opsq.spark.results(spark, unfinished, **named(reach)),
        "fleet without a daemon": lambda: opsq.spark.consume(spark, command=["cat"], tasks=1, **named(away)),
        "no program": lambda: opsq.spark.consume(spark, command=["no-such-program"], tasks=1, **named(reach)),
    }
    return {name: raised(case) for name, case in cases.items()}


def with_token(spark: SparkSession, reach: dict[str, str], folder: str, mark: str) -> dict[str, Any]:
    """Everything that takes options, with a token among them; what plans show.

    The mark comes last into the event log.
    """
    rows = spark.range(10).selectExpr("id AS n")
    number = written(spark, reach, rows, rowsPerChunk=2)
    opsq.spark.consume(spark, function=lambda table: table, tasks=1, **named(reach))
    source = spark.read.format("opsq").options(**reach).load(str(number))
    found = sorted(row.n for row in source.collect())
    plans = io.StringIO()
    with contextlib.redirect_stdout(plans):
        source.explain("extended")
        source.explain("formatted")
    stream = spark.readStream.format("opsq").options(**reach).schema("n BIGINT").load(str(number))
    query = (
        stream.writeStream.format("opsq")
        .options(**reach, checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = json.dumps(query.lastProgress, default=str) if query.lastProgress else ""
    spark.range(4).selectExpr(f"id AS {mark}").write.format("noop").mode("overwrite").save()
    return {"rows": found, "shown": plans.getvalue() + repr(source) + progress}


def failing(table: pa.Table) -> pa.Table:
    """A function that fails."""
    raise ValueError("this row is no good")


def written(spark: SparkSession, reach: dict[str, str], frame: DataFrame, **options: Any) -> int:
    """Write a frame; the id of its submission."""
    key = options.pop("idempotencyKey", None) or f"key of {frame.columns} {len(options)} {options}"
    frame.write.format("opsq").mode("append").options(**reach, **options, idempotencyKey=key).save()
    number = opsq.spark.submission_of(key, **named(reach))
    assert number is not None
    return number


def raised(call: Callable[[], object]) -> str:
    """What a call raises, with its type in front."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # looked at by the test
        return f"{type(error).__name__}: {error}"
    return "nothing"


def named(reach: dict[str, str]) -> dict[str, Any]:
    """Options as keywords of `opsq.spark`."""
    return {("state_dir" if name == "stateDir" else name): value for name, value in reach.items()}


def main(url: str, is_own: str, name: str, arguments: str) -> None:
    """Call a function with a session that a user has made, or that opsq has."""
    if is_own:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(url).getOrCreate()
        opsq.spark.register(spark)
    else:
        spark = opsq.spark.build_session(url, conf={"spark.sql.session.timeZone": "America/New_York"})
    print(json.dumps(globals()[name](spark, **json.loads(arguments))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
