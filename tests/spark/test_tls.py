"""Spark and a daemon that speaks TLS: writing, consuming and reading with a token and a certificate of the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from pyspark.errors import PySparkException

import opsq.spark
from daemons import running, state_of
from opsq.daemon import tokens_file
from opsq.errors import NotPermitted
from opsq.wire.roles import CONSUMER, PRODUCER
from spark.streaming import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.settings import Settings


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA, and with what it has signed for the daemon and for a client."""
    folder = tmp_path_factory.mktemp("pki")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("daemon", "client"):
        path = folder / f"{name}.pem"
        path.touch(0o600)
        path.write_bytes(ca.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
    return folder


@pytest.fixture
def daemon(runtime_dir: Path, pki: Path) -> Iterator[Settings]:
    """A daemon that listens on TLS only, and wants certificates."""
    certificate, ca = str(pki / "daemon.pem"), str(pki / "ca.pem")
    with running(runtime_dir, listen="localhost:0", tls_cert_file=certificate, tls_client_ca_file=ca) as settings:
        yield settings


@pytest.fixture
def address(daemon: Settings, pki: Path) -> str:
    """Where it is, with the files that a client needs."""
    port = state_of(daemon).settings["listen"].rpartition(":")[2]
    return f"tls://localhost:{port}?ca={pki}/ca.pem&cert={pki}/client.pem"


@pytest.fixture
def token(daemon: Settings) -> str:
    """What lets a client produce and consume, but not operate."""
    return tokens_file.create(daemon.tokens_file, "etl", frozenset((PRODUCER, CONSUMER)))


def test_rows_are_written_consumed_and_read_over_tls(spark: SparkSession, queue: opsq.Queue, address: str, token: str):
    options = {"address": address, "token": token}
    rows = spark.range(1000).selectExpr("id", "concat('row ', id) AS text")
    rows.write.format("opsq").mode("append").options(rowsPerChunk=100, idempotencyKey="by tls", **options).save()
    number = opsq.spark.submission_of("by tls", **options)
    assert number is not None
    by_function = opsq.spark.consume(spark, function=lambda table: table, tasks=2, submission=number, **options)
    assert by_function.completed == 10
    assert queue.submission(number).state().state == "completed"
    read = spark.read.format("opsq").options(**options).load(str(number))
    assert sorted(read.collect()) == sorted(rows.collect())
    assert opsq.spark.results(spark, number, **options).count() == 1000


def test_programs_of_executors_are_fed_over_tls(spark: SparkSession, queue: opsq.Queue, address: str, token: str):
    submission = queue.submit([b"a\n", b"b\n"])
    done = opsq.spark.consume(spark, command=["tr", "a-z", "A-Z"], tasks=1, address=address, token=token)
    assert done.completed == 2
    assert list(submission.results()) == [b"A\n", b"B\n"]


def test_stream_of_chunks_is_read_over_tls(
    spark: SparkSession, queue: opsq.Queue, address: str, token: str, tmp_path: Path
):
    submission = queue.submit([b"%d\n" % n for n in range(20)])
    found: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        found.extend(row["value"] for row in frame.collect())

    reader = spark.readStream.format("opsq").schema("value STRING")
    chunks = reader.options(mode="chunks", consumer="far", address=address, token=token).load()
    stream = chunks.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_end(stream)
    assert sorted(found, key=int) == [str(n) for n in range(20)]
    assert submission.state().state == "completed"


def test_client_that_does_not_trust_the_daemon_sends_nothing(spark: SparkSession, address: str, token: str):
    untrusted = address.partition("?")[0]
    rows = spark.range(1).write.format("opsq").mode("append").options(address=untrusted, token=token)
    with pytest.raises(PySparkException, match="is not accepted") as refused:
        rows.save()
    assert token not in str(refused.value)
    with pytest.raises(NotPermitted, match="is not accepted"):
        opsq.spark.submission_of("none", address=untrusted, token=token)
