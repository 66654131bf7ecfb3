"""What the docstring of the data source says of Spark itself.

Names of options in lower case, threads that have no active session, and what SQL tells of tables.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import opsq
from opsq.settings import Settings
from opsq.spark.source.data_source import OpsqDataSource
from opsq.spark.source.rule_options import RULES
from spark.conftest import work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Write = Callable[..., opsq.Submission]


def in_a_thread(job: Callable[[], None]) -> str:
    """Do it in a thread of its own; the error that ended it, empty if none did."""
    said: list[str] = []

    def body() -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001  # handed to the test
            said.append(str(error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return "".join(said)


def test_each_option_of_a_submission_is_in_the_manual_of_the_source() -> None:
    manual = OpsqDataSource.__doc__ or ""
    write = manual[manual.index("Options of a write") : manual.index("Options of a read:")]
    assert [name for name in RULES if not re.search(rf"\b{name}\b", write)] == []


def test_metadata_as_json_keeps_the_case_that_names_of_options_lose(spark: SparkSession, write: Write):
    state = write(spark.range(3), metadata='{"Tenant": "acme", "RunId": 7}', **{"meta.Part": 3}).state()
    assert state.metadata == {"Tenant": "acme", "RunId": 7, "part": 3}


def test_write_in_a_thread_of_its_own_needs_the_active_session_and_a_read_does_not(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
):
    """When the first half fails, the docstring and the readme need not tell of this any more."""

    def save() -> None:
        spark.range(3).write.format("opsq").mode("append").option("stateDir", daemon.state_dir).save()

    def save_in_the_session() -> None:
        spark.createDataFrame([], "n int")
        save()

    assert "DATA_SOURCE_NOT_FOUND" in in_a_thread(save)
    assert in_a_thread(save_in_the_session) == ""
    [state] = queue.submissions()
    for chunk in queue.consume():
        chunk.complete(chunk.data)
    counted: list[int] = []

    def read() -> None:
        counted.append(
            spark.read.format("opsq").option("stateDir", daemon.state_dir).load(str(state.submission_id)).count()
        )

    assert in_a_thread(read) == ""
    assert counted == [3]


@pytest.mark.parametrize("named", ["submission '{id}'", "path '{id}'"])
def test_temporary_view_in_sql_has_the_results_of_its_submission(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, write: Write, named: str
):
    submission = write(spark.range(10).selectExpr("id AS n", "'row ' || id AS text"), rowsPerChunk=3)
    work(queue)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW results USING opsq OPTIONS ({named.format(id=submission.id)}, "
        f"columns 'n', metadataColumns '_chunk', stateDir '{daemon.state_dir}')"
    )
    assert spark.table("results").columns == ["n", "_chunk"]
    assert spark.sql("SELECT sum(n), count(DISTINCT _chunk) FROM results WHERE n > 1").first()[:] == (
        44,
        submission.state().chunks_count,
    )
    with pytest.raises(Exception, match="is for a read, not for a write"):
        spark.sql("INSERT INTO results VALUES (1, 2)")


STATEMENT = r"CREATE TEMPORARY VIEW NAME USING opsq OPTIONS \(submission 'ID'\)"
QUERY = r"SELECT … FROM NAME WITH \(submission = 'ID'\)"


def test_table_of_the_catalog_is_refused_with_the_statements_that_work(spark: SparkSession, daemon: Settings):
    with pytest.raises(Exception, match=f"A table of Spark's catalog keeps no options.*{STATEMENT}.*{QUERY}"):
        spark.sql(f"CREATE TABLE refused USING opsq OPTIONS (submission '7', stateDir '{daemon.state_dir}')")
    assert not spark.catalog.tableExists("refused")


@pytest.mark.parametrize("is_filled_at_once", [True, False], ids=["saveAsTable", "INSERT INTO"])
def test_table_with_columns_has_the_submission_that_a_query_names(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, is_filled_at_once: bool
):
    """Spark tells the source nothing of a table: a write into one looks to it as any other."""
    there = f"stateDir = '{daemon.state_dir}'"
    if is_filled_at_once:
        writer = spark.range(10).selectExpr("id AS n").write.format("opsq").mode("append")
        writer.options(stateDir=daemon.state_dir, rowsPerChunk=5).saveAsTable("numbers")
    else:
        spark.sql("CREATE TABLE numbers (n BIGINT) USING opsq")
        spark.sql(f"INSERT INTO numbers WITH ({there}, rowsPerChunk = 5) SELECT id AS n FROM range(10)")
    try:
        [state] = queue.submissions()
        assert state.chunks_count >= 2
        work(queue)
        found = spark.sql(f"SELECT sum(n) FROM numbers WITH (submission = '{state.submission_id}', {there})")
        assert found.first()[:] == (45,)
        with pytest.raises(Exception, match=f"No submission is named.*{STATEMENT}.*{QUERY}"):
            spark.table("numbers").collect()
    finally:
        spark.sql("DROP TABLE numbers")
