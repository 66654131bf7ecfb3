"""The first result of a new session, stage by stage, against native Spark that does the same with Parquet.

Each run is a process of its own: it starts a JVM, writes 10⁵ rows, puts them through a function on Arrow tables, and
takes three aggregates of what came out. Ours is durable in between, and its daemon runs already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most, reported
from ours import spark as ours_spark

_ROWS_COUNT = 100_000
_STAGES = ("session", "write", "function", "read")
_PROGRAM = """
import json, sys, time
import opsq.spark
from ours import spark as ours
side, folder, rows_count = sys.argv[1], sys.argv[2], int(sys.argv[3])
times = [time.perf_counter()]
spark = opsq.spark.build_session("local[2]", conf={"spark.local.dir": f"{folder}/scratch"})
times.append(time.perf_counter())
rows = ours.rows(spark, rows_count)
if side == "ours":
    where = {"state_dir": f"{folder}/opsq"}
    submission = opsq.spark.write(rows, rows_per_chunk=rows_count // 10, **where)
    times.append(time.perf_counter())
    opsq.spark.consume(spark, function=lambda table: table, submission=submission, **where)
    times.append(time.perf_counter())
    found = opsq.spark.results(spark, submission, **where)
else:
    rows.write.mode("overwrite").parquet(f"{folder}/in")
    times.append(time.perf_counter())
    read = spark.read.parquet(f"{folder}/in")
    read.mapInArrow(lambda tables: tables, read.schema).write.mode("overwrite").parquet(f"{folder}/out")
    times.append(time.perf_counter())
    found = spark.read.parquet(f"{folder}/out")
total = [str(value) for value in found.selectExpr("sum(number)", "max(text)", "avg(part)").collect()[0]]
times.append(time.perf_counter())
print(json.dumps({"total": total, "seconds": [after - before for before, after in zip(times, times[1:])]}))
spark.stop()
"""


def measure(context: Context) -> Iterator[Row]:
    """Both sides in turn, each in a new process."""
    folder, totals = context.folder("first"), set[str]()
    stages: dict[str, list[list[float]]] = {"ours": [], "native": []}

    def run(side: str) -> float:
        command = [sys.executable, "-c", _PROGRAM, side, str(folder), str(_ROWS_COUNT)]
        ended = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, check=True)
        told = json.loads(ended.stdout.splitlines()[-1])
        totals.add(json.dumps(told["total"]))
        stages[side].append(told["seconds"])
        return float(sum(told["seconds"]))

    with ours_spark.daemon(folder / "opsq"):
        context.say(f"{context.pairs} new sessions of each side")
        ours, native = alternate(context.pairs, lambda: run("ours"), lambda: run("native"), warm_up=False)
    if len(totals) != 1:
        raise RuntimeError(f"the sides disagree: {totals}")
    what = f"a new session, {_ROWS_COUNT:,} rows written, through a function, aggregated"
    yield paired_row(what, "s", ours, native, ratio_at_most(1.5), rival_name="Spark's Parquet")
    for number, stage in enumerate(_STAGES):
        mine, theirs = ([seconds[number] for seconds in stages[side]] for side in ("ours", "native"))
        yield paired_row(f"of these: {stage}", "s", mine, theirs, reported(), rival_name="Spark's Parquet")


BENCHMARK = Benchmark("spark_first", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
