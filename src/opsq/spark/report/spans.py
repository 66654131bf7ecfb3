"""The rows of a history as spans of time in windows: how they are grouped, when they waited, when they ran.

It must not know the measures computed from them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

ATTEMPTS = ("completed", "failed", "lost")
"""The events that end an attempt; a death repeats the last attempt."""
SUBMISSION = "submission"
"""The `by` that groups rows by submission."""


def valued(history: DataFrame, by: str | None) -> DataFrame:
    """The history with the column `value`."""
    if by is None:
        value = sf.lit("all")
    elif by == SUBMISSION:
        value = sf.col("submission_id").cast("string")
    else:
        value = sf.try_element_at("metadata", sf.lit(by))
    return history.withColumn("value", value)


def window_of(micros: Column, step_s: int) -> Column:
    """The number of the window that contains an instant."""
    return sf.call_function("div", micros, sf.lit(step_s * 1_000_000).cast("long"))


def window_at(step_s: int) -> Column:
    """The start of a window."""
    return sf.timestamp_micros(sf.col("window") * (step_s * 1_000_000)).alias("window_at")


def attempts_of(history: DataFrame, by: str | None) -> DataFrame:
    """The attempts with their instants in microseconds since 1970, and how many chunks ran at a time."""
    end_us = sf.unix_micros("at")
    start_us = end_us - (sf.col("run_max_s") * 1e6).cast("long")
    rows = valued(history.where(sf.col("event").isin(*ATTEMPTS) & (sf.col("chunks") > 0)), by)
    return rows.select(
        "value",
        "consumer",
        "event",
        "chunks",
        "run_s",
        end_us.alias("end_us"),
        start_us.alias("start_us"),
        (start_us - (sf.col("wait_s") * 1e6).cast("long")).alias("ready_us"),
        sf.coalesce(sf.try_divide("run_s", "run_max_s"), sf.lit(0.0)).alias("at_a_time"),
    )


def served(attempts: DataFrame, step_s: int) -> DataFrame:
    """The attempts, once for each window that they touch, with the microseconds of service there."""
    step_us = step_s * 1_000_000
    windows = sf.sequence(window_of(sf.col("start_us"), step_s), window_of(sf.col("end_us"), step_s))
    begin = sf.greatest("start_us", sf.col("window") * step_us)
    end = sf.least("end_us", (sf.col("window") + 1) * step_us)
    served = ((end - begin) * sf.col("at_a_time")).cast("long")
    return attempts.select(
        "value", "consumer", "start_us", "end_us", "at_a_time", sf.explode(windows).alias("window")
    ).select("value", "consumer", "window", served.alias("served_us"))


def waited(attempts: DataFrame, step_s: int) -> DataFrame:
    """The service that waiting attempts could have used: `once_us` in a window, `delta_us` from a window on.

    So an attempt that waits for a thousand windows needs three rows, not a thousand. Before the window of `from_us`, in
    which the first attempt started, there was no service.
    """
    step_us = step_s * 1_000_000
    run_us = sf.col("end_us") - sf.col("start_us")
    nothing = sf.lit(0).cast("long")

    def weighed(micros: Column) -> Column:
        return (sf.least(run_us, micros) * sf.col("at_a_time")).cast("long")

    def part(window: Column, once: Column, delta: Column) -> Column:
        return sf.struct(window.alias("window"), once.alias("once_us"), delta.alias("delta_us"))

    first, last = sf.col("first"), sf.col("last")
    whole = weighed(sf.lit(step_us))
    several = sf.array(
        part(first, weighed((first + 1) * step_us - sf.col("ready_us")), nothing),
        part(first + 1, nothing, whole),
        part(last, weighed(sf.col("start_us") - last * step_us), -whole),
    )
    one = sf.array(part(first, weighed(sf.col("start_us") - sf.col("ready_us")), nothing))
    waiting = (
        attempts.withColumn("ready_us", sf.greatest("ready_us", window_of(sf.col("from_us"), step_s) * step_us))
        .where("start_us > ready_us")
        .withColumn("first", window_of(sf.col("ready_us"), step_s))
        .withColumn("last", window_of(sf.col("start_us"), step_s))
    )
    return waiting.select("value", sf.explode(sf.when(first == last, one).otherwise(several)).alias("part")).select(
        "value", "part.*"
    )
