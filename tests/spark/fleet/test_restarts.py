"""A daemon that is restarted while Spark plans a job: whoever asks it then waits a moment, and the job is planned.

No JVM is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

import opsq
from daemons import end
from opsq.daemon import lifecycle
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet.driver import plan_fleet
from opsq.spark.source import daemon_address
from opsq.spark.source.batch_reader import OpsqReader
from opsq.spark.source.batch_writer import plan_write
from opsq.spark.source.data_source import OpsqDataSource
from opsq.spark.source.source_options import DaemonOptions, parse_read, parse_write

SCHEMA = StructType([StructField("id", LongType())])

Plan = Callable[[dict[str, str], str], Any]

PLANS: dict[str, Plan] = {
    "a write": lambda reach, number: plan_write(parse_write(reach), SCHEMA, overwrite=False),
    "a read": lambda reach, number: OpsqReader(parse_read(reach | {"path": number}), SCHEMA, None).partitions(),
    "a schema": lambda reach, number: OpsqDataSource(reach | {"path": number}).schema(),
    "a fleet": lambda reach, number: plan_fleet(
        DaemonOptions(state_dir=reach["statedir"]), ConsumeOptions(until="empty"), command=["cat"]
    ),
}


@pytest.mark.parametrize("what", PLANS)
def test_restart_while_a_job_is_planned_fails_nothing(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(daemon_address, "PLAN_PATIENCE_S", 60.0)  # the machine may be busy
    submission = queue.submit([b'{"id": 1}\n'])
    for chunk in queue.consume():
        chunk.complete(chunk.data)
    end(daemon)
    planned: list[Any] = []
    thread = threading.Thread(
        target=lambda: planned.append(PLANS[what]({"statedir": daemon.state_dir}, str(submission.id)))
    )
    thread.start()
    assert lifecycle.start(daemon).status == "started"
    thread.join()
    assert planned
