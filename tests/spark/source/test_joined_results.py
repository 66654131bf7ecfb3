"""A copy of results for Spark's own reader: whole or not there, wherever the power is lost. Without a JVM."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from faults.power.disk import Disk, Luck
from faults.power.recording import recorded
from opsq.client.core.held_block import Result
from opsq.content.local_store import LocalStore
from opsq.spark.source.daemon_address import StoreAccess
from opsq.spark.source.joined_results import _lay_out
from opsq.spark.source.result_fetch import SourceSubmission

SEEDS = 8
SECTOR_BYTES = 512


def result_of(start: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(range(start, start + 300), pa.int64())}), sink)
    return sink.getvalue()


def test_copy_that_a_loss_of_power_leaves_is_whole(tmp_path: Path):
    results: list[Result] = [result_of(300 * number) for number in range(6)]
    with recorded(tmp_path) as recording:
        store = LocalStore(tmp_path / "content")
        access = StoreAccess(store.url, store.mark(), 1 << 20, is_durable=True)
        store.create_folder("folder")
        target = tmp_path / "content" / "folder" / "joined-0"
        _lay_out(SourceSubmission(1, "folder", 6, None, access), results, target, 2 * len(results[0]))
    assert recording.unlike() == []
    whole = {f"content/folder/joined-0/{path.name}": path.read_bytes() for path in target.iterdir()}
    assert len(whole) == 3
    disk, found_count = Disk(), 0
    for operation in recording.operations:
        disk.apply(operation)
        for seed in range(SEEDS):
            left = disk.after_crash(Luck(0.5, SECTOR_BYTES, seed))
            if "content/folder/joined-0" in left:
                found_count += 1
                assert {path: content for path, content in left.items() if "joined-0/" in path} == whole
    assert found_count
