"""Measures of a queue's history as functions on DataFrames: waiting, run times, throughput, failures, fairness.

It must not collect, draw or print; each function takes the history as `opsq history export --format parquet` writes it
and returns a DataFrame, so that a notebook can continue from there:

    history = report.load_history(spark, "/srv/history")
    report.summary(history, by="tenant").orderBy("wait_p99_s", ascending=False).show()

`by` says how rows are grouped: by a key of the metadata, by `submission`, or None for all together. The column is named
`value`; it is null where a submission does not have the key, or no longer has it. A row of the history may stand for
several chunks of a block: it counts as that many, each with the longest wait and the mean run time. Windows of `step_s`
start at multiples of it since 1970.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from opsq.spark.history_export import exported_place
from opsq.spark.report.spans import ATTEMPTS, SUBMISSION, attempts_of, served, valued, waited, window_at, window_of

PERCENTS = (50, 90, 99)

ACCURACY = 0.005
"""The relative error that a percentile may have."""
_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_NOTHING = -100_000
"""The bucket of what is shorter than a nanosecond."""
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200)
_DAY_S = 86_400


def load_history(
    spark: SparkSession, folder: str | os.PathLike[str], *, from_ms: int | None = None, to_ms: int | None = None
) -> DataFrame:
    """The history in a folder of Parquet files as `opsq history export` writes them, or in one such file.

    Args:
        from_ms: only what was reported from this instant on, in milliseconds since 1970.
        to_ms: only what was reported before this instant.

    Raises:
        NotFound: there is no such file.
    """
    history = spark.read.option("pathGlobFilter", "*.parquet").parquet(exported_place(folder))
    if from_ms is not None:
        history = history.where(sf.col("at") >= sf.timestamp_micros(sf.lit(from_ms * 1000)))
    if to_ms is not None:
        history = history.where(sf.col("at") < sf.timestamp_micros(sf.lit(to_ms * 1000)))
    return history


def span(history: DataFrame) -> DataFrame:
    """One row: `rows`, `first_at` (the first attempt starts) and `last_at` (the last event), or null."""
    return history.agg(
        sf.count("*").alias("rows"),
        sf.min(sf.coalesce("started_at", "at")).alias("first_at"),
        sf.max("at").alias("last_at"),
    )


def step_for(seconds: float, windows_count: int = 60) -> int:
    """A round window length, in seconds, so that about `windows_count` windows cover the time."""
    least = seconds / windows_count
    return next((step for step in _STEPS_S if step >= least), max(1, math.ceil(least / _DAY_S)) * _DAY_S)


# --- per value --------------------------------------------------------------------------------------------------------


def summary(history: DataFrame, by: str | None = SUBMISSION) -> DataFrame:
    """A row per value: what became of its chunks, how long they waited and ran, how many per second.

    Returns:
        - `value`
        - `completed`, `failed`, `lost`, `dead`, `requeued`, `dropped`: chunks; a chunk that fails twice counts twice.
        - `retry_rate`: of the chunks that were completed or died, the share that had failed or been lost before.
        - `attempts_per_chunk`: the mean number of attempts of the chunks that were completed or died.
        - `dead_rate`: of them, the share that died.
        - `busy_s`: total run time of all attempts, also failed ones.
        - `first_at`, `last_at`: the first attempt started, the last ended.
        - `per_s`: completed ÷ (last_at - first_at).
        - `wait_p50_s`, `wait_p90_s`, `wait_p99_s`: of all attempts, from when a chunk might be handed out until it was.
        - `run_p50_s`, `run_p90_s`, `run_p99_s`: of completed chunks.

        Rates are null where they would be divided by zero. Percentiles: see `percentiles`.
    """
    is_end = sf.col("event").isin("completed", "dead")
    is_attempt = sf.col("event").isin(*ATTEMPTS)
    counts = (
        valued(history, by)
        .groupBy("value")
        .agg(
            *(_chunks_of(event).alias(event) for event in (*ATTEMPTS, "dead", "requeued", "dropped")),
            sf.sum(sf.when(is_end & (sf.col("attempt") > 0), sf.col("chunks").cast("long")).otherwise(0)).alias(
                "retried"
            ),
            sf.sum(sf.when(is_end, sf.col("chunks").cast("long") * (sf.col("attempt") + 1)).otherwise(0)).alias(
                "tries"
            ),
            sf.sum(sf.when(is_attempt, sf.col("run_s")).otherwise(0.0)).alias("busy_s"),
            sf.min(sf.when(is_attempt, sf.coalesce("started_at", "at"))).alias("first_at"),
            sf.max(sf.when(is_attempt, sf.col("at"))).alias("last_at"),
        )
        .withColumn("ended", sf.col("completed") + sf.col("dead"))
        .withColumn("span_s", (sf.unix_micros("last_at") - sf.unix_micros("first_at")) / 1e6)
    )
    waits = _named(percentiles(histogram(history, "wait_s", by)), "wait")
    runs = _named(percentiles(histogram(history, "run_s", by, events=("completed",))), "run")
    joined = counts.join(waits, counts.value.eqNullSafe(waits.of), "left").drop("of")
    joined = joined.join(runs, joined.value.eqNullSafe(runs.of), "left").drop("of")
    return joined.select(
        "value",
        *ATTEMPTS,
        "dead",
        "requeued",
        "dropped",
        sf.try_divide("retried", "ended").alias("retry_rate"),
        sf.try_divide("tries", "ended").alias("attempts_per_chunk"),
        sf.try_divide("dead", "ended").alias("dead_rate"),
        "busy_s",
        "first_at",
        "last_at",
        sf.try_divide("completed", "span_s").alias("per_s"),
        *(f"{kind}_p{percent}_s" for kind in ("wait", "run") for percent in PERCENTS),
    )


def histogram(
    history: DataFrame, column: str, by: str | None = SUBMISSION, events: Sequence[str] = ATTEMPTS
) -> DataFrame:
    """Histograms of waiting times (`wait_s`) or run times (`run_s`): `value`, `bucket`, `chunks`.

    Bucket i holds (γ^(i-1), γ^i] seconds with γ = (1+α)/(1-α) and α = `ACCURACY`; durations of zero have a bucket of
    their own. Histograms can be added, over values or over days.

    Source: Masson, Rim, Lee: DDSketch, a fast and fully-mergeable quantile sketch with relative-error guarantees, VLDB
        2019.
    """
    one = sf.try_divide(sf.col(column), sf.col("chunks")) if column == "run_s" else sf.col(column)
    bucket = sf.when(one > 1e-9, sf.ceil(sf.ln(one) / math.log(_GAMMA))).otherwise(_NOTHING).cast("int")
    of_interest = history.where(sf.col("event").isin(*events) & (sf.col("chunks") > 0))
    rows = valued(of_interest, by).select("value", bucket.alias("bucket"), "chunks")
    return rows.groupBy("value", "bucket").agg(sf.sum("chunks").alias("chunks"))


def percentiles(histograms: DataFrame, percents: Sequence[int] = PERCENTS) -> DataFrame:
    """Percentiles of histograms, by the nearest rank: `value`, and `p50_s`, … as requested.

    The p-th percentile of N chunks is what the chunk of rank ⌈p·N/100⌉ took, to within `ACCURACY` of it.
    """
    every = Window.partitionBy("value")
    ranked = histograms.select(
        "value",
        "bucket",
        sf.sum("chunks").over(every.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)).alias("rank"),
        sf.sum("chunks").over(every).alias("all"),
    )

    def percentile(percent: int) -> Column:
        bucket = sf.min(sf.when(sf.col("rank") >= sf.ceil(sf.col("all") * percent / 100), sf.col("bucket")))
        middle = sf.pow(sf.lit(_GAMMA), bucket) * (2 / (_GAMMA + 1))
        return sf.when(bucket == _NOTHING, sf.lit(0.0)).otherwise(middle).alias(f"p{percent}_s")

    return ranked.groupBy("value").agg(*(percentile(percent) for percent in percents))


def failures(history: DataFrame, by: str | None = SUBMISSION) -> DataFrame:
    """How attempts failed, a row per value and kind: `value`, `kind`, `chunks`, and the newest `reason`.

    A kind is `exit N`, `signal N`, `lost` (the consumer was gone, or its lease had expired), or `failed` without the
    end of a program.
    """
    kind = (
        sf.when(sf.col("event") == "lost", "lost")
        .when(sf.col("signal").isNotNull(), sf.concat(sf.lit("signal "), sf.col("signal").cast("string")))
        .when(sf.col("exit_status").isNotNull(), sf.concat(sf.lit("exit "), sf.col("exit_status").cast("string")))
        .otherwise("failed")
    )
    rows = valued(history.where(sf.col("event").isin("failed", "lost")), by).withColumn("kind", kind)
    return rows.groupBy("value", "kind").agg(
        sf.sum("chunks").alias("chunks"), sf.max_by("reason", "seq").alias("reason")
    )


# --- over time --------------------------------------------------------------------------------------------------------


def throughput(history: DataFrame, by: str | None = SUBMISSION, step_s: int = 60) -> DataFrame:
    """What ended in each window: `value`, `window_at`, `completed`, `failed` (including lost), `dead`, `per_s`.

    `per_s` = completed ÷ step_s. A window in which nothing ended has no row.
    """
    rows = valued(history.where(sf.col("event").isin(*ATTEMPTS, "dead")), by).withColumn(
        "window", window_of(sf.unix_micros("at"), step_s)
    )
    found = rows.groupBy("value", "window").agg(
        _chunks_of("completed").alias("completed"),
        _chunks_of("failed", "lost").alias("failed"),
        _chunks_of("dead").alias("dead"),
    )
    return found.select(
        "value",
        window_at(step_s),
        "completed",
        "failed",
        "dead",
        (sf.col("completed") / sf.lit(float(step_s))).alias("per_s"),
    )


def service(history: DataFrame, by: str | None = SUBMISSION, step_s: int = 60) -> DataFrame:
    """The work in each window: `value`, `consumer`, `window_at`, `busy_s`, and `load` = busy_s ÷ step_s.

    An attempt counts in each window that it touches, for as long as it ran there. Chunks of one row are assumed to have
    run together, run_s ÷ run_max_s at a time.
    """
    found = (
        served(attempts_of(history, by), step_s)
        .groupBy("value", "consumer", "window")
        .agg(sf.sum("served_us").alias("served_us"))
    )
    busy_s = sf.col("served_us") / 1e6
    return found.select(
        "value", "consumer", window_at(step_s), busy_s.alias("busy_s"), (busy_s / sf.lit(float(step_s))).alias("load")
    )


def utilisation(history: DataFrame, step_s: int = 60) -> DataFrame:
    """How busy each consumer was.

    Returns:
        - `consumer`
        - `first_at`, `last_at`: its first attempt started, its last ended.
        - `completed`, `failed` (including lost): chunks.
        - `busy_s`: total run time.
        - `load`: busy_s ÷ (last_at - first_at), the mean number of chunks at a time (Little: A proof for L = λW, 1961).
        - `peak_load`: the highest load of a whole window; not less than `load`, which covers the time from first to
          last.
        - `utilisation`: load ÷ peak_load, or ÷ 1 if that is less: the share of the most it was seen to do, or of one
          chunk at a time. Never above 1.
    """
    rows = attempts_of(history, None)
    whole = rows.groupBy("consumer").agg(
        sf.min("start_us").alias("first_us"),
        sf.max("end_us").alias("last_us"),
        _chunks_of("completed").alias("completed"),
        _chunks_of("failed", "lost").alias("failed"),
        sf.sum("run_s").alias("busy_s"),
    )
    windows = (
        served(rows, step_s).groupBy("consumer", "window").agg((sf.sum("served_us") / (step_s * 1e6)).alias("load"))
    )
    peaks = windows.groupBy(sf.col("consumer").alias("of")).agg(sf.max("load").alias("peak_load"))
    load = sf.try_divide("busy_s", (sf.col("last_us") - sf.col("first_us")) / 1e6)
    joined = whole.join(peaks, whole.consumer.eqNullSafe(peaks.of), "left").withColumn("load", load)
    part_of_peak = sf.col("load") / sf.greatest(sf.lit(1.0), "peak_load")
    return joined.select(
        "consumer",
        sf.timestamp_micros("first_us").alias("first_at"),
        sf.timestamp_micros("last_us").alias("last_at"),
        "completed",
        "failed",
        "busy_s",
        "load",
        sf.greatest("peak_load", "load").alias("peak_load"),
        # LEAST skips nulls
        sf.when(sf.col("load").isNotNull(), sf.least(part_of_peak, sf.lit(1.0))).alias("utilisation"),
    )


# --- fairness ---------------------------------------------------------------------------------------------------------


def shares(history: DataFrame, by: str | None = SUBMISSION, step_s: int = 60) -> DataFrame:
    """Service, demand and fair share in each window: `value`, `window_at`, `service_s`, `demand_s`, `entitled_s`.

    - `service_s`: how long its chunks ran there.
    - `demand_s`: that, plus for each waiting chunk its run time, or its waiting time there if that is less: no chunk
      can run longer in a window than it is there.
    - `entitled_s`: its share if the service of the window had been divided max-min fairly: no value gets more than it
      can use, and the rest is shared equally by those that can use more.

    A value has a row for each window in which it could have used service. Work that never started is not in the history
    and does not count.

    Source: Bertsekas, Gallager: Data Networks, 1992, 6.5.2 (max-min flow control). With the demands sorted, d₁ ≤ … ≤
        dₙ, and the service c, the level is the largest of (c - d₁ - … - dₖ₋₁) ÷ (n-k+1), and nobody gets more than
        that.
    """
    rows = attempts_of(history, by)
    bounds = rows.agg(sf.min("start_us").alias("from_us"), sf.max("end_us").alias("to_us"))
    edges = sf.sequence(window_of(sf.col("from_us"), step_s), window_of(sf.col("to_us"), step_s))
    windows = bounds.where("from_us IS NOT NULL").select(sf.explode(edges).alias("window"))
    nothing = sf.lit(0).cast("long")
    every = rows.select("value").distinct().crossJoin(sf.broadcast(windows))
    parts = (
        every.select("value", "window", nothing.alias("served_us"), nothing.alias("once_us"), nothing.alias("delta_us"))
        .unionByName(
            served(rows, step_s).select(
                "value", "window", "served_us", nothing.alias("once_us"), nothing.alias("delta_us")
            )
        )
        .unionByName(
            waited(rows.crossJoin(sf.broadcast(bounds)), step_s).select(
                "value", "window", nothing.alias("served_us"), "once_us", "delta_us"
            )
        )
    )
    names = ("served_us", "once_us", "delta_us")
    sums = parts.groupBy("value", "window").agg(*(sf.sum(name).alias(name) for name in names))
    so_far = Window.partitionBy("value").orderBy("window").rowsBetween(Window.unboundedPreceding, 0)
    wanted = sf.col("served_us") + sf.col("once_us") + sf.sum("delta_us").over(so_far)
    used = sums.select("value", "window", "served_us", wanted.alias("wanted_us")).where("wanted_us > 0")
    together = Window.partitionBy("window")
    ranked = together.orderBy("wanted_us", "value")
    before = sf.coalesce(sf.sum("wanted_us").over(ranked.rowsBetween(Window.unboundedPreceding, -1)), nothing)
    left = sf.count("*").over(together) - sf.row_number().over(ranked) + 1  # at least 1
    levels = used.withColumn("level_us", (sf.sum("served_us").over(together) - before) / left)
    return levels.withColumn("top_us", sf.max("level_us").over(together)).select(
        "value",
        window_at(step_s),
        (sf.col("served_us") / 1e6).alias("service_s"),
        (sf.col("wanted_us") / 1e6).alias("demand_s"),
        (sf.least("wanted_us", "top_us") / 1e6).alias("entitled_s"),
    )


def fairness(history: DataFrame, by: str | None = SUBMISSION, step_s: int = 60) -> DataFrame:
    """The service that each value got and should have got: a row per value, its `shares` summed over all windows.

    Returns:
        - `value`, `service_s`, `demand_s`, `entitled_s`
        - `service_share`, `demand_share`: of all service, and of all demand.
        - `satisfaction`: service_s ÷ entitled_s: below 1 it got less than a fair share, above 1 more; null without
          demand.

        `jain(…, "satisfaction")` sums this up in one number.
    """
    names = ("service_s", "demand_s", "entitled_s")
    sums = shares(history, by, step_s).groupBy("value").agg(*(sf.sum(name).alias(name) for name in names))
    every = Window.partitionBy()
    return sums.select(
        "value",
        *names,
        sf.try_divide(sf.col("service_s"), sf.sum("service_s").over(every)).alias("service_share"),
        sf.try_divide(sf.col("demand_s"), sf.sum("demand_s").over(every)).alias("demand_share"),
        sf.try_divide("service_s", "entitled_s").alias("satisfaction"),
    )


def jain(frame: DataFrame, column: str = "satisfaction") -> DataFrame:
    """Jain's index of a column, (Σx)² ÷ (n·Σx²), in one row: `jain`, and the number n of `values`.

    The index is 1 if all are equal, and 1/n if one has everything. Nulls do not count; the index is null if nothing or
    only zeros are left.

    Source: Jain, Chiu, Hawe: A quantitative measure of fairness and discrimination for resource allocation in shared
        computer systems, DEC TR-301, 1984; x is actual ÷ fair share.
    """
    x = sf.col(column)
    index = sf.try_divide(sf.pow(sf.sum(x), sf.lit(2)), sf.count(x) * sf.sum(x * x))
    return frame.agg(index.alias("jain"), sf.count(x).alias("values"))


def _chunks_of(*events: str) -> Column:
    return sf.sum(sf.when(sf.col("event").isin(*events), sf.col("chunks").cast("long")).otherwise(0))


def _named(frame: DataFrame, kind: str) -> DataFrame:
    columns = (sf.col(name).alias(f"{kind}_{name}") for name in frame.columns if name != "value")
    return frame.select(sf.col("value").alias("of"), *columns)
