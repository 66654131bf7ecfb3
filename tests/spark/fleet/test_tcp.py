"""A stream of chunks from a daemon that is reached over TCP, with a token: what a cluster of other machines does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.streaming.datasource import ReadMaxRows

import opsq
from daemons import running
from opsq.errors import NotPermitted
from opsq.settings import Settings
from opsq.spark.source.chunk_stream import OpsqChunkReader, chunk_schema
from opsq.spark.source.source_options import parse_chunks
from spark.streaming import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINES = t.StructType([t.StructField("value", t.StringType())])
WRONG = "f" * 64


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon that listens on a port of loopback as well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running(runtime_dir, listen=f"127.0.0.1:{port}") as settings:
        yield settings


def options_of(daemon: Settings, **options: str) -> dict[str, str]:
    return {"mode": "chunks", "address": str(daemon.listen), "consumer": "far", "strategy": "OldestFirst", **options}


def test_wrong_token_is_refused_when_the_stream_starts_and_shows_in_no_error(
    daemon: Settings, queue: opsq.Queue
) -> None:
    queue.submit([b"x\n"])
    options = parse_chunks(options_of(daemon, token=WRONG))
    reader = OpsqChunkReader(options, LINES)
    for ask in (lambda: chunk_schema(options), lambda: reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))):
        with pytest.raises(NotPermitted) as refused:
            ask()
        assert "ffff" not in str(refused.value)
    reader.stop()


def test_query_over_tcp_completes_each_chunk_once(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
) -> None:
    submission = queue.submit([b"%d\n" % n for n in range(100)])
    found: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        found.extend(row["value"] for row in frame.collect())

    reader = spark.readStream.format("opsq").options(
        **options_of(daemon, tokenFile=daemon.token_file, maxChunksPerTrigger="30")
    )
    stream = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    run_to_end(stream)
    assert sorted(found, key=int) == [str(n) for n in range(100)]
    assert submission.state().state == "completed"
    token = Path(daemon.token_file).read_text().strip()
    written = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert written
    assert not any(token.encode() in path.read_bytes() for path in written)


def test_wrong_token_ends_the_query_and_is_not_told(spark: SparkSession, daemon: Settings, queue: opsq.Queue) -> None:
    queue.submit([b"x\n"])
    with pytest.raises(PySparkException) as refused:
        spark.readStream.format("opsq").options(**options_of(daemon, token=WRONG)).load()
    assert "token" in str(refused.value)
    assert "ffff" not in str(refused.value)
