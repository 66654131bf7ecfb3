"""Parts, hand-overs and their taking back without a JVM.

What a task does and what a commit does, against a real daemon.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import opsq
from daemons import end, running
from opsq import traces
from opsq.client.core.address import TlsAddress
from opsq.client.core.new_submission import new_request_key
from opsq.content.manifest import ABOUT_LIMIT_BYTES
from opsq.content.store_kinds import open_store
from opsq.errors import ChunkTooLarge, Conflict, ContentMissing, InputUnreadable, NoRoom, StoreNotVisible, Unreachable
from opsq.settings import Settings
from opsq.spark.formats.chunk_format import read_chunk_format
from opsq.spark.source import commit
from opsq.spark.source.commit import PartMessage, WritePlan, begin, submit_parts, withdraw, write_part
from opsq.spark.source.daemon_address import Daemon, StoreAccess, resolve, store_of
from opsq.spark.source.source_options import DaemonOptions, parse_write
from opsq.wire.messages import Describe, Described
from spark.conftest import folders, parts, work
from waiting import wait_until

SCHEMA = pa.schema([("n", pa.int64())])


def plan_of(daemon: Settings, queue: opsq.Queue, **options: str) -> WritePlan:
    parsed = parse_write({"stateDir": daemon.state_dir, "chunkFormat": "csv", "rowsPerChunk": "2", **options})
    return WritePlan(
        parsed, resolve(parsed.daemon), store_of(queue), '{"type":"struct","fields":[]}', new_request_key()
    )


def write(plan: WritePlan, numbers: list[int], partition: int = 0, attempt: int = 0) -> PartMessage:
    batches = [pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)]
    return write_part(plan, SCHEMA, batches, partition, attempt)


def chunks_of(submission_id: int, queue: opsq.Queue) -> list[bytes]:
    work(queue)
    return list(queue.submission(submission_id).results())


def test_submission_has_the_title_of_its_write(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue, title="Events of May")
    submission_id = submit_parts(plan, [write(plan, [1, 2])], SCHEMA)
    assert queue.submission(submission_id).state().title == "Events of May"


def test_submission_carries_the_trace_of_its_write_or_of_the_environment(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
):
    given, inherited = f"00-{'1' * 32}-{'2' * 16}-01", f"00-{'3' * 32}-{'4' * 16}-01"
    monkeypatch.setenv("TRACEPARENT", inherited)
    plans = [plan_of(daemon, queue, traceparent=given), plan_of(daemon, queue)]
    ids = [submit_parts(plan, [write(plan, [1])], SCHEMA) for plan in plans]
    described = queue.link.call(Describe(queue.link.next_id(), ids), Described).submissions
    assert [traces.carried_by(one.content) for one in described] == [(given, ""), (inherited, "")]


def test_parts_are_put_together_in_the_order_of_partitions_and_losers_are_dropped(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    lost = write(plan, [8, 9], partition=1, attempt=1)
    second, first, empty = (
        write(plan, [4, 5], 1, attempt=2),
        write(plan, [1, 2, 3], 0, attempt=0),
        write(plan, [], 2, attempt=3),
    )
    assert len(parts(daemon)) == 3
    submission = submit_parts(plan, [second, empty, first], SCHEMA)
    assert chunks_of(submission, queue) == [b'"n"\n1\n2\n', b'"n"\n3\n', b'"n"\n4\n5\n']
    assert lost.written is not None
    assert lost.written.name not in parts(daemon)
    assert len(parts(daemon)) == 2


def test_submission_tells_the_form_of_its_chunks(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    submission = submit_parts(plan, [write(plan, [1, 2, 3])], SCHEMA)
    [described] = queue.link.call(Describe(queue.link.next_id(), [submission]), Described).submissions
    found = read_chunk_format(described.content, queue.contents.store)
    assert found is not None
    assert (found.name, found.rows_count, found.schema) == ("csv", 3, plan.schema_json)


def test_write_that_is_taken_back_can_never_be_handed_over(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    message = write(plan, [1])
    assert withdraw(plan.daemon, plan.store, plan.request_key) is None
    assert folders(daemon) == []
    with pytest.raises(ContentMissing):
        submit_parts(plan, [message], SCHEMA)
    late = write(plan, [2], attempt=1)
    with pytest.raises(Conflict, match="was withdrawn"):
        submit_parts(plan, [late], SCHEMA)
    assert list(queue.submissions()) == []


def test_task_that_comes_after_its_write_was_withdrawn_leaves_nothing(daemon: Settings, queue: opsq.Queue):
    plan = begin(plan_of(daemon, queue))
    assert folders(daemon) == [plan.folder]

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=SCHEMA)
        withdraw(plan.daemon, plan.store, plan.request_key)

    with pytest.raises(StoreNotVisible):
        write_part(plan, SCHEMA, rows(), 0, 0)
    assert folders(daemon) == []


def test_write_without_rows_leaves_no_folder(daemon: Settings, queue: opsq.Queue):
    plan = begin(plan_of(daemon, queue))
    submission = submit_parts(plan, [write(plan, [])], SCHEMA)
    assert queue.submission(submission).state().chunks_count == 0
    assert folders(daemon) == []


def test_write_without_rows_keeps_a_schema_that_is_too_long_to_send(daemon: Settings, queue: opsq.Queue):
    schema = json.dumps({"type": "struct", "fields": [], "note": "x" * ABOUT_LIMIT_BYTES})
    plans = [msgspec.structs.replace(plan_of(daemon, queue, idempotencyKey="k"), schema_json=schema) for _ in range(2)]
    submission, again = [submit_parts(plan, [write(plan, [])], SCHEMA) for plan in (plans[0], begin(plans[1]))]
    assert again == submission
    assert submit_parts(plans[0], [write(plans[0], [])], SCHEMA) == submission
    assert folders(daemon) == [plans[0].folder]
    found = queue.link.call(Describe(queue.link.next_id(), [submission]), Described).submissions[0]
    chunk_format = read_chunk_format(found.content, plans[0].store.open())
    assert chunk_format is not None
    assert chunk_format.schema == schema


def test_part_that_was_deleted_before_the_hand_over_is_named_and_nothing_is_submitted(
    daemon: Settings, queue: opsq.Queue
):
    plan = plan_of(daemon, queue)
    kept, gone = write(plan, [1, 2]), write(plan, [3, 4], partition=1)
    assert gone.written is not None
    queue.contents.store.delete_object(f"{plan.folder}/{gone.written.name}")
    with pytest.raises(ContentMissing, match=f"1 of 2 parts are gone .{gone.written.name} is one.*Write again"):
        submit_parts(plan, [kept, gone], SCHEMA)
    queue.contents.store.delete_folder(plan.folder)
    with pytest.raises(ContentMissing, match="2 of 2 parts"):
        submit_parts(plan, [kept, gone], SCHEMA)
    assert list(queue.submissions()) == []
    assert folders(daemon) == []


def test_write_that_was_handed_over_is_not_taken_back(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    submission = submit_parts(plan, [write(plan, [1, 2])], SCHEMA)
    assert withdraw(plan.daemon, plan.store, plan.request_key) == submission
    assert chunks_of(submission, queue) == [b'"n"\n1\n2\n']


def test_hand_over_that_is_repeated_makes_one_submission(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    message = write(plan, [1, 2])
    assert submit_parts(plan, [message], SCHEMA) == submit_parts(plan, [message], SCHEMA)
    assert len(parts(daemon)) == 1


def test_same_rows_under_one_key_are_one_submission_and_the_second_copy_goes(daemon: Settings, queue: opsq.Queue):
    first, second = plan_of(daemon, queue, idempotencyKey="k"), plan_of(daemon, queue, idempotencyKey="k")
    submission = submit_parts(first, [write(first, [1, 2, 3])], SCHEMA)
    assert submit_parts(second, [write(second, [1, 2, 3])], SCHEMA) == submission
    assert folders(daemon) == [first.folder]


@pytest.mark.parametrize(("numbers", "cut"), [([1, 2, 4], "2"), ([2, 1, 3], "2"), ([1, 2, 3], "3")])
def test_other_rows_under_one_key_are_a_conflict_and_leave_nothing(
    daemon: Settings, queue: opsq.Queue, numbers: list[int], cut: str
):
    first, second = (
        plan_of(daemon, queue, idempotencyKey="k"),
        plan_of(daemon, queue, idempotencyKey="k", rowsPerChunk=cut),
    )
    submission = submit_parts(first, [write(first, [1, 2, 3])], SCHEMA)
    message = write(second, numbers)
    with pytest.raises(Conflict, match=f"'k' is held by submission {submission}, which has other chunks"):
        submit_parts(second, [message], SCHEMA)
    assert folders(daemon) == [first.folder]
    assert withdraw(second.daemon, second.store, second.request_key) is None


def test_request_key_that_another_submission_holds_leaves_that_its_content(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    submission = submit_parts(plan, [write(plan, [1, 2])], SCHEMA)
    other = write(plan, [3, 4])
    with pytest.raises(Conflict, match=f"belongs to submission {submission}, which has other content"):
        submit_parts(plan, [other], SCHEMA)
    assert chunks_of(submission, queue) == [b'"n"\n1\n2\n']


def test_no_room_refuses_the_hand_over_or_is_waited_for(runtime_dir: Path):
    with running(runtime_dir, max_backlog_chunks="2") as settings, opsq.connect(state_dir=runtime_dir) as queue:
        queue.submit([b"a", b"b"])
        plan = plan_of(settings, queue)
        with pytest.raises(NoRoom):
            submit_parts(plan, [write(plan, [1, 2])], SCHEMA)
        assert folders(settings) == []
        patient = plan_of(settings, queue, waitForRoom="true")
        message = write(patient, [1, 2])
        with ThreadPoolExecutor(1) as pool:
            handed = pool.submit(submit_parts, patient, [message], SCHEMA)
            wait_until(lambda: queue.status().room_waiting_count == 1, what="the hand-over waits")
            work(queue)
            submission = handed.result(30)
        assert chunks_of(submission, queue) == [b'"n"\n1\n2\n']


def test_replay_of_other_bytes_is_the_batch_that_was_handed_over(daemon: Settings, queue: opsq.Queue):
    first, replay = plan_of(daemon, queue, idempotencyKey="q-0"), plan_of(daemon, queue, idempotencyKey="q-0")
    submission = submit_parts(first, [write(first, [1, 2, 3])], SCHEMA, is_replay_safe=True)
    assert submit_parts(replay, [write(replay, [3, 2, 1])], SCHEMA, is_replay_safe=True) == submission
    assert folders(daemon) == [first.folder]


def test_taking_back_leaves_content_alone_while_nobody_can_tell_whether_it_was_handed_over(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
):
    plan = plan_of(daemon, queue)
    submit_parts(plan, [write(plan, [1])], SCHEMA)
    end(daemon)
    monkeypatch.setattr(commit, "PATIENCE_S", 0.0)
    assert withdraw(plan.daemon, plan.store, plan.request_key) is None
    assert folders(daemon) == [plan.folder]


def test_attempt_that_fails_amid_its_rows_leaves_nothing(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue, rowsPerChunk="1000000")
    plan = msgspec.structs.replace(plan, store=msgspec.structs.replace(plan.store, chunk_limit_bytes=1000))
    with pytest.raises(ChunkTooLarge, match=r"In partition 3: .*smaller rowsPerChunk"):
        write(plan, list(range(1000)), partition=3)
    assert parts(daemon) == []


def test_plan_travels_and_never_shows_its_token(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue, token="s3cret-token")
    plan = msgspec.structs.replace(plan, daemon=Daemon(("host", 1), "s3cret-token"))
    back = pickle.loads(pickle.dumps(plan))
    assert back == plan
    assert back.daemon.token == "s3cret-token"
    assert "s3cret" not in repr(plan)


def test_executor_without_a_file_of_the_address_says_who_misses_it(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        daemon = Daemon(TlsAddress("127.0.0.1", listener.getsockname()[1], str(tmp_path / "ca.pem")), "x")
        with pytest.raises(InputUnreadable, match=r"^From .*Cannot read the TLS file .*ca.pem.*the same path on all"):
            daemon.open()


def test_files_of_an_address_are_named_for_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = resolve(DaemonOptions(address="tls://queue.example:7411?ca=ca.pem", token="x"))
    assert found.address == TlsAddress("queue.example", 7411, str(tmp_path / "ca.pem"))


def test_executor_without_the_store_says_who_misses_it(daemon: Settings, queue: opsq.Queue, tmp_path: Path):
    access = StoreAccess(open_store(tmp_path / "elsewhere").url, store_of(queue).marker, 1000, False)
    with pytest.raises(StoreNotVisible, match=r"^From .*: The daemon's content store.*a shared mount"):
        access.open()


def test_store_that_vanishes_amid_a_write_is_an_error(daemon: Settings, queue: opsq.Queue):
    plan = plan_of(daemon, queue)
    shutil.rmtree(Path(daemon.state_dir) / "content")
    with pytest.raises(StoreNotVisible):
        write(plan, [1])


def test_daemon_that_is_away_for_good_is_told_with_what_executors_need(runtime_dir: Path):
    away = Daemon(str(runtime_dir / "opsq.sock"), "")
    with pytest.raises(Unreachable, match="A socket is a file of one machine"):
        away.open()
