"""Plans: no statement of any strategy scans, sorts or materialises, as SQLite itself says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from opsq.store import backlog
from opsq.store.database import Database
from opsq.strategy import explain
from opsq.strategy.arms import (
    CUSTOM_PRIORITY,
    NEWEST_FIRST,
    OLDEST_FIRST,
    RANDOM,
    Arm,
    Filter,
    compile_arms,
    values_sql,
    walk_sql,
)
from opsq.strategy.text import parse
from opsq.strategy.tree import Strategy
from unit.model.rig import Rig
from unit.story import KEYS, VALUES, in_folder
from unit.strategy_trees import MAXIMA, trees

FORBIDDEN = ("SCAN", "USE TEMP B-TREE", "MATERIALIZE")
SHORT = {
    "SELECT token FROM owner",  # which has one row
    "SELECT count(*) FROM (SELECT 1 FROM lane_submission WHERE lane_id = ? LIMIT ?)",  # bounded by its limit
}
"""Statements that may scan."""


def statements(arms: Iterable[Arm]) -> Iterator[str]:
    """Every statement that may serve these arms, those of the fronts that `Fair` makes for its values included."""
    for arm in arms:
        yield from (sql for _, sql in explain.statements(arm))
        # submissions with the key, without, and with the values that the arm, or one within it, is for
        for own in {
            Filter(arm.fair_key, "x"),
            Filter(arm.fair_key, None),
            *(each for each in filters_of(arm) if each.key == arm.fair_key),
        }:
            yield from statements(inner.within((*arm.filters, own), arm.gates) for inner in arm.inner)


def filters_of(arm: Arm) -> Iterator[Filter]:
    """The filters of an arm and of those within it."""
    yield from arm.filters
    for inner in arm.inner:
        yield from filters_of(inner)


def bad_steps(connection: apsw.Connection, sql: str) -> list[str]:
    """The steps of a plan that would not stream."""
    numbers = [int(number) for number in re.findall(r"\?([0-9]+)", sql)] or [sql.count("?")]
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (0,) * max(numbers))
    return [detail for *_, detail in plan if detail.startswith(FORBIDDEN)]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A migrated file."""
    database = Database.open(tmp_path_factory.mktemp("plans") / "opsq.sqlite", is_durable=False)
    yield database
    database.close()


@given(strategy=trees(4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_statement_of_every_strategy_streams(database: Database, strategy: Strategy) -> None:
    for sql in {*statements(compile_arms(strategy)), backlog.SUPPLY_SQL}:
        assert bad_steps(database.reader, sql) == [], sql


@pytest.mark.parametrize("probes", [0, 1, 2, 8])
@pytest.mark.parametrize("absent", [0, 1, 2])
def test_every_walk_streams_whatever_it_looks_up(database: Database, probes: int, absent: int) -> None:
    walks = [walk_sql(order, probes, absent) for order in (OLDEST_FIRST, NEWEST_FIRST, CUSTOM_PRIORITY, RANDOM)]
    for sql in (*walks, values_sql(probes, absent)):
        assert bad_steps(database.reader, sql) == [], sql


@given(
    st.lists(
        trees(4, keys=st.sampled_from([*KEYS, "submission"]), values=st.sampled_from(VALUES), maxima=MAXIMA),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=8),
)
@example([parse("SelectOnly(b=1, Fair(b, OldestFirst))")], [("b", 1)])
@example([parse("Fair(a, SelectOnly(a=1, OldestFirst))")], [("a", 1)])
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
def test_every_statement_that_a_reserve_really_runs_streams(
    strategies: list[Strategy], pairs: list[tuple[str, int | str]]
) -> None:
    """Not what `explain` says: what the reader is given, look-ups and delays included."""
    run: set[str] = set()

    def trace(_: apsw.Cursor, sql: str, _bindings: object) -> bool:
        run.add(sql)
        return True

    with in_folder() as folder:
        rig = Rig(folder)
        for pair in pairs:
            rig.submit(3, metadata=dict([pair]))
        rig.restart()
        peer = rig.connect()
        reader = rig.database.reader
        reader.exec_trace = trace
        for strategy in strategies:
            rig.reserve(peer, 2, str(strategy))
        rig.park(peer, 50, str(strategies[0]), until_empty=True)
        reader.exec_trace = None
        for sql in run - SHORT:
            assert bad_steps(reader, sql) == [], sql
        walks = {sql for sql in run if "FROM lane_submission w" in sql}
        assert walks <= set(statements(arm for one in strategies for arm in compile_arms(one)))
        rig.close()
