"""`opsq spark report` over a day of history: read, computed on two cores, printed, and written as a page.

With the start of Spark.

The history is made as `opsq history export --format parquet` would have written it, in files of a million rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, at_most, main
from ours import cli

_FILE_ROWS = 1_000_000
_DAY_US = 86_400 * 1_000_000
_BEGIN_US = 1_767_225_600 * 1_000_000
_TENANTS_COUNT = 13
_SUBMISSIONS_COUNT = 1000
_CONSUMERS_COUNT = 24


def write_history(folder: Path, rows_count: int) -> None:
    """Attempts of a thousand submissions of thirteen tenants: most complete, some fail, are lost or die.

    Some rows stand for 64 chunks.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from opsq.cli.output.event_export import _schema

    schema, die = _schema(pa), np.random.default_rng(20260301)
    for first in range(0, rows_count, _FILE_ROWS):
        count = min(_FILE_ROWS, rows_count - first)
        at = _BEGIN_US + np.sort(die.integers(0, _DAY_US // 1000, count)) * 1000
        submissions = die.integers(1, _SUBMISSIONS_COUNT + 1, count)
        event = die.choice(4, count, p=(0.95, 0.03, 0.01, 0.01))
        chunks = np.where(die.random(count) < 0.05, 64, 1)
        run_max_s = np.round(die.lognormal(-1.0, 1.2, count), 6)
        failed = event == 1
        tenants = pa.array([f"tenant-{number:02}" for number in range(_TENANTS_COUNT)])
        offsets = pa.array(np.arange(count + 1, dtype=np.int32))
        pairs = pa.MapArray.from_arrays(
            offsets, pa.repeat("tenant", count), tenants.take(pa.array(submissions % _TENANTS_COUNT))
        )
        columns = {
            "seq": first + 1 + np.arange(count),
            "at": pa.array(at, schema.field("at").type),
            "event": pa.array(["completed", "failed", "lost", "dead"]).take(pa.array(event)),
            "submission_id": submissions,
            "first_index": die.integers(0, 100_000, count),
            "chunks": pa.array(chunks.astype(np.int32)),
            "indexes": pa.repeat("0", count),
            "attempt": pa.array((die.random(count) < 0.03).astype(np.int32)),
            "consumer": pa.array([f"consumer-{number:02}" for number in range(_CONSUMERS_COUNT)]).take(
                pa.array(die.integers(0, _CONSUMERS_COUNT, count))
            ),
            "started_at": pa.array(at - (run_max_s * 1e6).astype(np.int64), schema.field("started_at").type),
            "wait_s": np.round(die.exponential(600.0, count), 3),
            "run_s": run_max_s * np.where(chunks > 1, 40, 1),
            "run_max_s": run_max_s,
            "exit_status": pa.array(np.where(failed, 3, 0).astype(np.int32), mask=~failed & (event != 0)),
            "reason": pa.array(["", "no such host"]).take(pa.array(failed.astype(np.int8))),
            "metadata": pairs,
        }
        rows = [columns.get(field.name, pa.nulls(count, field.type)) for field in schema]
        table = pa.table(rows, schema=schema)
        name = f"history-{first + 1:019}-{first + count:019}.parquet"
        parquet.write_table(table, folder / name, compression="zstd", row_group_size=50_000)


def measure(context: Context) -> Iterator[Row]:
    """From the start of the program to its end."""
    rows_count = context.size(5_000_000, 500_000)
    folder = context.folder("history")
    context.say(f"a history of {rows_count:,} events")
    write_history(folder, rows_count)
    page = context.work_dir / "report.html"
    for by in ("tenant", "submission"):
        context.say(f"opsq spark report --by {by}")
        words = ("spark", "report", "--from", str(folder), "--by", by, "--master", "local[2]", "--html", str(page))
        taken_s = cli.run(context.folder("opsq"), *words)
        yield Row(
            f"opsq spark report --by {by} over {rows_count:,} events, local[2], start to exit",
            "s",
            taken_s,
            at_most(90, "s"),
        )


BENCHMARK = Benchmark("spark_report", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
