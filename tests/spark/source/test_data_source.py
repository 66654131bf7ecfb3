"""What the docstring of the data source says of Spark itself.

Names of options in lower case, and threads that have no active session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import opsq
from opsq.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Write = Callable[..., opsq.Submission]


def in_a_thread(work: Callable[[], None]) -> str:
    """Do it in a thread of its own; the error that ended it, empty if none did."""
    said: list[str] = []

    def body() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # handed to the test
            said.append(str(error))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return "".join(said)


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
