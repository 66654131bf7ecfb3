"""The figures of the report against plain loops over the same history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark.report_model as model
from opsq.errors import NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_S = 30
BYS = ("tenant", "submission", None)


# --- the model itself -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(0, 5000))
def test_max_min_fair_parts_use_up_the_service_and_nobody_gets_more_than_he_can_use(demands: list[int], capacity: int):
    top = model.level(demands, capacity)
    parts = [min(demand, top) for demand in demands]
    assert sum(parts) == pytest.approx(min(capacity, sum(demands)))
    assert len({part for part, demand in zip(parts, demands, strict=True) if part < demand}) <= 1


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
def test_jain_lies_between_one_nth_and_one(values: list[float]):
    index = model.jain(values)
    assert index is not None
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def write_history(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[model.Event]], DataFrame]:
    """Writes a history as the export does, in two files, and loads it."""
    from opsq.spark import report

    def write(events: list[model.Event]) -> DataFrame:
        import pyarrow as pa
        from pyarrow import parquet

        from opsq.cli.output.event_export import _schema

        schema, folder = _schema(pa), tmp_path_factory.mktemp("history")
        for number, rows in enumerate((events[::2], events[1::2])):
            table = pa.Table.from_pylist([event.as_row() for event in rows], schema)
            parquet.write_table(table, folder / f"history-{number:019}-{number:019}.parquet")
        return report.load_history(spark, folder)

    return write


@pytest.fixture(scope="session")
def events() -> list[model.Event]:
    return model.random_history(7)


@pytest.fixture(scope="session")
def history(write_history: Callable[[list[model.Event]], DataFrame], events: list[model.Event]) -> DataFrame:
    return write_history(events)


def rows_of(frame: DataFrame, *keys: str) -> dict[Any, dict[str, Any]]:
    """The rows by their keys; each key once."""
    rows = [row.asDict() for row in frame.collect()]
    found = {tuple(row[key] for key in keys) if len(keys) > 1 else row[keys[0]]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("by", BYS)
def test_summary_of_a_random_history_is_that_of_plain_loops(
    history: DataFrame, events: list[model.Event], by: str | None
):
    from opsq.spark import report

    found = rows_of(report.summary(history, by), "value")
    expected = {value: model.summary(rows) for value, rows in model.by_value(events, by).items()}
    assert found.keys() == expected.keys()
    for value, figures in expected.items():
        for name, figure in figures.items():
            within = report.ACCURACY + 1e-6 if "_p" in name else 1e-9
            assert found[value][name] == pytest.approx(figure, rel=within, abs=1e-9), (value, name)


@pytest.mark.parametrize("by", BYS)
def test_shares_of_a_random_history_are_those_of_plain_loops(
    history: DataFrame, events: list[model.Event], by: str | None
):
    from opsq.spark import report

    found = {
        (value, int(window_at.timestamp()) // STEP_S): row
        for (value, window_at), row in rows_of(report.shares(history, by, STEP_S), "value", "window_at").items()
    }
    expected = model.shares(events, by, STEP_S)
    assert found.keys() == expected.keys()
    for key, (service_us, demand_us, entitled_us) in expected.items():
        row = found[key]
        assert (row["service_s"], row["demand_s"]) == (service_us / 1e6, demand_us / 1e6), key
        assert row["entitled_s"] == pytest.approx(entitled_us / 1e6, rel=1e-9), key


def test_fairness_of_a_random_history_adds_up(history: DataFrame, events: list[model.Event]):
    from opsq.spark import report

    sums: dict[str | None, list[float]] = {}
    for (value, _), parts in model.shares(events, "tenant", STEP_S).items():
        sums[value] = [
            before + part / 1e6 for before, part in zip(sums.get(value, [0.0, 0.0, 0.0]), parts, strict=True)
        ]
    service_s, demand_s, _ = map(sum, zip(*sums.values(), strict=True))
    frame = report.fairness(history, "tenant", STEP_S)
    found = rows_of(frame, "value")
    assert found.keys() == sums.keys()
    for value, (served, wanted, entitled) in sums.items():
        row = found[value]
        assert row["service_share"] == pytest.approx(served / service_s)
        assert row["demand_share"] == pytest.approx(wanted / demand_s)
        assert row["satisfaction"] == pytest.approx(served / entitled)
    [index] = report.jain(frame).collect()
    assert index["values"] == len(sums)
    assert index["jain"] == pytest.approx(model.jain([served / entitled for served, _, entitled in sums.values()]))


def test_throughput_and_failures_of_a_random_history_are_those_of_plain_loops(
    history: DataFrame, events: list[model.Event]
):
    from opsq.spark import report

    windows = rows_of(report.throughput(history, "tenant", STEP_S), "value", "window_at")
    expected: dict[Any, int] = {}
    for event in events:
        if event.event in (*model.ATTEMPTS, "dead"):
            key = event.value("tenant"), event.at // 1_000_000 // STEP_S
            expected[key] = expected.get(key, 0) + (event.chunks if event.event == "completed" else 0)
    assert {
        (value, int(at.timestamp()) // STEP_S): row["completed"] for (value, at), row in windows.items()
    } == expected
    assert all(row["per_s"] == pytest.approx(row["completed"] / STEP_S) for row in windows.values())

    kinds: dict[Any, tuple[int, int]] = {}
    for event in events:
        if event.event in ("failed", "lost"):
            ended = "failed" if event.exit_status is None else f"exit {event.exit_status}"
            kind = "lost" if event.event == "lost" else ended if event.signal is None else f"signal {event.signal}"
            count, seq = kinds.get((event.value("tenant"), kind), (0, 0))
            kinds[event.value("tenant"), kind] = count + event.chunks, max(seq, event.seq)
    found = rows_of(report.failures(history, "tenant"), "value", "kind")
    assert {key: (row["chunks"], row["reason"]) for key, row in found.items()} == {
        key: (count, f"reason {seq}") for key, (count, seq) in kinds.items()
    }


def test_utilisation_of_a_random_history_is_that_of_plain_loops(history: DataFrame, events: list[model.Event]):
    from opsq.spark import report

    found = rows_of(report.utilisation(history, STEP_S), "consumer")
    consumers = {event.consumer for event in model.attempts(events)}
    assert found.keys() == consumers
    for consumer in consumers:
        own = [event for event in model.attempts(events) if event.consumer == consumer]
        load = sum(event.run_s for event in own) / (
            (max(event.at for event in own) - min(event.start for event in own)) / 1e6
        )
        peak = max(
            sum(row[0] for key, row in model.shares(own, None, STEP_S).items() if key[1] == window)
            for window in _windows(own)
        )
        peak = max(peak / (STEP_S * 1e6), load)
        row = found[consumer]
        assert row["load"] == pytest.approx(load)
        assert row["peak_load"] == pytest.approx(peak, rel=1e-6)
        assert row["utilisation"] == pytest.approx(min(load / max(1, peak), 1), rel=1e-6)


def _windows(events: list[model.Event]) -> set[int]:
    return {key[1] for key in model.shares(events, None, STEP_S)}


# --- what the figures mean --------------------------------------------------------------------------------------------


def queued(order: str, lengths_s: float = 10.0) -> list[model.Event]:
    """One consumer works off what tenants a and b submitted at once, a letter a chunk, in this order."""
    begin = 1_800_000_000 * 1_000_000
    return [
        model.Event(
            number + 1,
            begin + int((number + 1) * lengths_s * 1e6),
            "completed",
            1,
            1,
            0,
            "one",
            number * lengths_s,
            lengths_s,
            lengths_s,
            0,
            None,
            "",
            {"tenant": letter},
        )
        for number, letter in enumerate(order)
    ]


def test_one_tenant_after_the_other_is_less_fair_than_taking_turns(
    write_history: Callable[[list[model.Event]], DataFrame],
):
    from opsq.spark import report

    def index(order: str) -> float:
        [row] = report.jain(report.fairness(write_history(queued(order)), "tenant", 60)).collect()
        return float(row["jain"])

    assert index("abababababababababababab") > 0.99
    assert index("aaaaaaaaaaaabbb") < 0.9


def test_tenant_that_wants_little_and_gets_it_is_satisfied_however_much_another_waits(
    write_history: Callable[[list[model.Event]], DataFrame],
):
    from opsq.spark import report

    found = rows_of(report.fairness(write_history(queued("baaaaaaaaaaaaaaaaaaaaaaaaa")), "tenant", 60), "value")
    assert found["a"]["demand_share"] > 0.95
    assert [found[value]["satisfaction"] for value in "ab"] == pytest.approx([1, 1], rel=0.05)


def test_history_without_attempts_has_no_figures_and_divides_by_nothing(
    write_history: Callable[[list[model.Event]], DataFrame],
):
    from opsq.spark import report

    cancelled = model.random_history(1, 1)[0]._replace(
        event="cancelled", chunks=0, run_s=0.0, run_max_s=0.0, wait_s=0.0
    )
    for events in ([], [cancelled]):
        history = write_history(events)
        assert [row["retry_rate"] for row in report.summary(history).collect()] == [None] * len(events)
        assert report.fairness(history).collect() == []
        assert [tuple(row) for row in report.jain(report.fairness(history)).collect()] == [(None, 0)]
        assert report.utilisation(history).collect() == []


def test_work_that_took_no_time_divides_by_nothing(write_history: Callable[[list[model.Event]], DataFrame]):
    from opsq.spark import report

    history = write_history(queued("ab", 0.0))
    assert [row["per_s"] for row in report.summary(history, "tenant").collect()] == [None, None]
    assert [row["utilisation"] for row in report.utilisation(history).collect()] == [None]
    assert report.fairness(history, "tenant").collect() == []


# --- loading ----------------------------------------------------------------------------------------------------------


def test_history_is_cut_at_instants(history: DataFrame, spark: SparkSession, events: list[model.Event]):
    from opsq.spark import report

    low, high = sorted(event.at // 1000 for event in events)[100:300:199]
    folder = Path(history.inputFiles()[0].removeprefix("file://")).parent
    cut = report.load_history(spark, folder, from_ms=low, to_ms=high)
    assert cut.count() == sum(low <= event.at // 1000 < high for event in events)


def test_folder_without_a_history_is_said_to_be_one(spark: SparkSession, tmp_path: Path):
    from opsq.spark import report

    with pytest.raises(NotFound, match="no history in Parquet"):
        report.load_history(spark, tmp_path)


def test_windows_are_of_round_lengths_and_not_too_many():
    from opsq.spark import report

    for seconds in (0, 1, 59, 61, 3600, 86_400, 30 * 86_400, 400 * 86_400):
        step = report.step_for(seconds)
        assert seconds / step <= 60
        assert step == 1 or seconds / step > 15
