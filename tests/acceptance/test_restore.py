"""opsq restore: a queue comes back from its replica, as its user does it; the store is a folder on another disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from acceptance.conftest import Opsq
from waiting import wait_until


@pytest.fixture
def replicated(opsq: Opsq) -> Iterator[Opsq]:
    """A daemon that copies its queue, with a short lease."""
    opsq.environ |= {
        "OPSQ_STORE": f"file://{opsq.folder}/content",
        "OPSQ_REPLICATE_TO": f"file://{opsq.folder}/replica",
        "OPSQ_REPLICATE_EVERY_S": "0.1s",
        "OPSQ_REPLICATE_LEASE_S": "1s",
    }
    opsq.ok("start")
    yield opsq
    opsq("stop")  # Litestream ends with it


def await_copy(queue: Opsq) -> None:
    """Wait until everything that was committed is in the replica."""

    def is_copied() -> bool:
        replica = queue.ok("status", "--json").json["replica"]
        return bool(replica["state"] == "running" and not replica["lag_s"])

    wait_until(is_copied, what="everything is copied")


def test_lost_queue_comes_back_with_all_that_was_copied(replicated: Opsq):
    submission = replicated.submit_lines(5)
    await_copy(replicated)
    assert "replica\trunning" in replicated.ok("status").lines
    assert "ok" in replicated("doctor").text
    replicated.ok("stop")
    shutil.rmtree(replicated.state_dir)
    document = replicated.ok("restore", f"{replicated.folder}/replica", "--json").json
    assert document["state_dir"] == str(replicated.state_dir)
    assert (document["owner"], document["is_checked"], document["former_lag_s"]) == (2, True, 0.0)
    assert document["start"].endswith(f"--store file://{replicated.folder}/content")
    replicated.ok("check")
    replicated.ok("start")
    replicated.ok("consume", "--until-empty", "--", "cat")
    assert len(replicated.ok("results", submission).lines) == 5


def test_lines_name_what_was_restored(replicated: Opsq):
    await_copy(replicated)
    replicated.ok("stop")
    shutil.rmtree(replicated.state_dir)
    lines = replicated.ok("restore", f"file://{replicated.folder}/replica").lines
    assert [line.partition("\t")[0] for line in lines] == [
        *("state_dir", "bytes", "newest_at", "former_host", "former_heard_at", "former_lag_s", "start")
    ]


def test_folder_with_a_database_is_exit_5(replicated: Opsq):
    await_copy(replicated)
    replicated.ok("stop")
    assert replicated("restore", f"{replicated.folder}/replica").status == 5


def test_url_without_a_replica_is_exit_2(opsq: Opsq):
    ran = opsq("restore", f"{opsq.folder}/nothing")
    assert ran.status == 2
    assert "no replica" in ran.err


def test_queue_with_a_replica_is_not_served_without_it(replicated: Opsq):
    await_copy(replicated)
    replicated.ok("stop")
    del replicated.environ["OPSQ_REPLICATE_TO"]
    ran = replicated("start")
    assert ran.status == 5
    assert "--replicate-to" in ran.err


def test_store_on_the_same_disk_is_exit_2(opsq: Opsq):
    ran = opsq("start", "--replicate-to", f"{opsq.folder}/replica")
    assert ran.status == 2
    assert "--store s3://" in ran.err


def test_submit_returns_when_the_replica_has_it(replicated: Opsq):
    submission = replicated.ok("submit", "--ack", "replicated", "-", stdin=b"work\n").text
    replicated.ok("stop")
    shutil.rmtree(replicated.state_dir)
    replicated.ok("restore", f"{replicated.folder}/replica")
    replicated.ok("start")
    assert replicated.ok("show", submission, "--json").json["state"] == "open"


def test_submit_for_a_replica_that_there_is_not_is_exit_2(opsq: Opsq):
    opsq.ok("start")
    ran = opsq("submit", "--ack", "replicated", "-", stdin=b"work\n")
    assert ran.status == 2
    assert "no replica" in ran.err
