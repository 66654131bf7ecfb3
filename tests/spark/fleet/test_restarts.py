"""A daemon that is restarted, or away for long, while Spark plans, runs or commits a job: whoever asks it then waits.

No JVM is needed.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import opsq
import opsq.spark
from daemons import end
from opsq.daemon import lifecycle
from opsq.errors import Unreachable
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet.driver import plan_fleet
from opsq.spark.formats.schemas import arrow_schema
from opsq.spark.source import daemon_address
from opsq.spark.source.batch_reader import OpsqReader
from opsq.spark.source.batch_writer import plan_write
from opsq.spark.source.chunk_stream import OpsqChunkReader
from opsq.spark.source.commit import begin, submit_parts
from opsq.spark.source.data_source import OpsqDataSource
from opsq.spark.source.source_options import DaemonOptions, parse_chunks, parse_read, parse_write
from opsq.spark.source.stream import OpsqStreamReader
from waiting import wait_until

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


# --- away for long ----------------------------------------------------------------------------------------------------

DEADLINE_S = 180
Work = Callable[[], Any]
Stop = Callable[[Callable[[], object]], object]
"""Registers what is to be called at the end."""


def a_query(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    return lambda: OpsqDataSource(reach | {"path": number}).schema()


def a_task_that_reads(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    reader = OpsqReader(parse_read(reach | {"path": number, "resultFormat": "jsonl"}), SCHEMA, None)
    sent = pickle.dumps((reader, reader.partitions()))

    def read() -> Any:
        sent_reader, partitions = pickle.loads(sent)
        return [batch for partition in partitions for batch in sent_reader.read(partition)]

    return read


def a_stream_of_results(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    reader = OpsqStreamReader(parse_read(reach | {"path": number}), SCHEMA, None)
    at_end(reader.stop)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    return lambda: reader.partitions(reader.initialOffset(), end)


def a_stream_of_chunks(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    reader = OpsqChunkReader(parse_chunks(reach | {"mode": "chunks", "consumer": "nightly"}), SCHEMA)
    at_end(reader.stop)
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    def look() -> bool:
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        return True

    return look


def a_commit(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    plan = begin(plan_write(parse_write(reach), SCHEMA, overwrite=False))
    return lambda: submit_parts(plan, [], arrow_schema(SCHEMA))


def a_function_of_the_session(reach: dict[str, str], number: str, at_end: Stop) -> Work:
    def look() -> bool:
        opsq.spark.submission_of("nightly", state_dir=reach["statedir"])
        return True

    look()
    return look


@pytest.mark.parametrize(
    ("what", "has_met"),
    [
        (a_query, True),
        (a_task_that_reads, False),
        (a_stream_of_results, True),
        (a_stream_of_chunks, True),
        (a_commit, False),
        (a_function_of_the_session, True),
    ],
)
def test_daemon_that_is_long_away_is_reported_and_work_goes_on_when_it_is_back_with_another_port(
    daemon: Settings,
    queue: opsq.Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    what: Callable[[dict[str, str], str, Stop], Work],
    has_met: bool,
) -> None:
    submission = queue.submit([b'{"id": 1}\n'])
    for chunk in queue.consume():
        chunk.complete(chunk.data)
    assert plan_write(parse_write({"statedir": daemon.state_dir}), SCHEMA, overwrite=False)  # this process has met it
    work = what({"statedir": daemon.state_dir}, str(submission.id), request.addfinalizer)
    monkeypatch.setattr(daemon_address, "AWAY_S", 0.2)
    monkeypatch.setattr(daemon_address, "PLAN_PATIENCE_S", 0.0)
    monkeypatch.setattr(daemon_address, "PATIENCE_S", 0.0)
    if not has_met:  # as a process that Spark has just started for it
        monkeypatch.setattr(daemon_address, "_met", set())
    end(daemon)
    done: list[Any] = []
    with caplog.at_level(logging.WARNING, "opsq"):
        thread = threading.Thread(target=lambda: done.append(work()), daemon=True)
        thread.start()
        wait_until(lambda: "No daemon has answered at" in caplog.text, DEADLINE_S, "its absence is reported")
        assert (done, thread.is_alive()) == ([], True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        assert lifecycle.start(msgspec.structs.replace(daemon, listen=listen)).status == "started"
        thread.join(DEADLINE_S)
    assert "answers again" in caplog.text
    assert done[0]


@pytest.mark.parametrize("is_planned", [False, True], ids=["a session", "a task on another host"])
def test_daemon_that_was_never_met_is_soon_reported_as_an_error(
    daemon: Settings, monkeypatch: pytest.MonkeyPatch, is_planned: bool
) -> None:
    end(daemon)
    monkeypatch.setattr(daemon_address, "PLAN_PATIENCE_S", 0.0)
    monkeypatch.setattr(daemon_address, "PATIENCE_S", 0.0)
    found = daemon_address.Daemon(daemon.socket, "", "another host")
    with pytest.raises(Unreachable, match="opsq start --listen HOST:PORT"):
        found.open(is_planned=is_planned)
