"""Opsqueue's protocol at the gateway, as its clients meet it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from acceptance.opsqueue_client import Consumer, Producer
from waiting import wait_until

DEADLINE_S = 180
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def address(queue):
    """Where a gateway serves."""
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        yield process.stdout.readline().decode().strip().removeprefix("http://")


@pytest.fixture
def producer(address):
    """A producer."""
    producer = Producer(address)
    with producer.client:
        yield producer


@pytest.fixture
def consumer(address):
    """A consumer."""
    consumer = Consumer(address)
    yield consumer
    consumer.close()


def state(producer, submission_id, variant):
    """The submission, once it is in that state."""
    return wait_until(lambda: producer.status(submission_id).get(variant), DEADLINE_S, f"it is {variant}")


def test_submission_travels_from_producer_to_consumer_and_back(producer, consumer):
    assert producer.client.get("/version").text == "v0.30.3" == consumer.init["version_info"]
    submission_id = producer.stored(
        "some-prefix",
        2,
        metadata=[0, 255, 104],
        strategic_metadata={"tenant": 7},
        chunk_size=20,
        headers={"traceparent": TRACE},
    )
    assert producer.get("/submissions/count") == 1
    told = {
        "id": submission_id,
        "prefix": "some-prefix",
        "chunks_total": 2,
        "chunks_done": 0,
        "chunk_size": 20,
        "metadata": [0, 255, 104],
        "strategic_metadata": {"tenant": 7},
        "otel_trace_carrier": json.dumps({"traceparent": TRACE}, separators=(",", ":")),
    }
    assert producer.status(submission_id) == {"InProgress": told}
    [[chunk, submission]] = consumer.reserve()
    assert chunk == {"submission_id": submission_id, "chunk_index": 0, "input_content": None, "retries": 0}
    assert submission == told | {"metadata": bytes([0, 255, 104])}
    consumer.complete(chunk)
    consumer.complete(chunk)  # it does not count twice
    [[chunk, _]] = consumer.reserve()
    assert producer.status(submission_id)["InProgress"]["chunks_done"] == 1
    consumer.complete(chunk)
    ended = state(producer, submission_id, "Completed")
    assert {key: ended[key] for key in told} == told | {"chunks_done": 2}
    assert ended["completed_at"].endswith("Z")
    assert (producer.get("/submissions/count"), producer.get("/submissions/count_completed")) == (0, 1)


def test_prefix_makes_one_submission_and_finds_it(producer):
    submission_id = producer.stored("once", 3)
    assert producer.stored("once", 3) == submission_id
    assert producer.get("/submissions/lookup_id_by_prefix/once") == submission_id
    assert producer.get("/submissions/lookup_id_by_prefix/other") is None
    assert producer.get("/submissions/count") == 1


def test_submission_without_chunks_is_completed_at_once(producer):
    assert "Completed" in producer.status(producer.stored("empty", 0))


def test_ids_that_are_not_known_are_null(producer):
    assert producer.status(1) is None
    assert producer.get(f"/submissions/{1 << 63}") is None
    assert producer.get(f"/submissions/lookup_id_by_prefix/{'p' * 2000}") is None
    assert producer.client.post("/submissions/lookup_ids_by_strategic_metadata", json={"a b": 1}).json() == []


def test_chunks_in_the_request_come_back_as_results(producer, consumer, queue):
    submission_id = producer.insert({"Direct": {"contents": [[1, 255], None]}})
    big = bytes(range(256)) * 64
    for expected, output in ((b"\x01\xff", b"first"), (b"", big)):
        [[chunk, submission]] = consumer.reserve()
        assert (chunk["input_content"], submission["prefix"]) == (expected, None)
        consumer.complete(chunk, output)
    state(producer, submission_id, "Completed")
    assert queue.ok("results", str(submission_id)).out == b"first" + big


def test_chunk_that_cannot_be_read_fails_and_its_consumer_goes_on(consumer, queue):
    lost = queue.folder / "lost.txt"
    lost.write_bytes(b"a\n")
    in_place = queue.ok("submit", "--in-place", "--max-attempts", "1", str(lost)).text
    lost.unlink()
    queue.submit_lines(1)
    [[chunk, _]] = consumer.reserve(2)
    assert chunk["input_content"] == b"0\n"
    dead = wait_until(lambda: queue.ok("dead", "list", in_place, "--json").json["chunks"], DEADLINE_S, "it is dead")
    assert "lost.txt" in dead[0]["reason"]


def test_consumer_is_told_why_its_gateway_cannot_read(consumer, queue):
    folder = queue.folder / os.fsdecode(b"\xff" + "ü".encode() * 120)
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a\n")
    queue.ok("submit", "--in-place", str(folder / "a.txt"))
    folder.rename(queue.folder / "elsewhere")
    consumer.ask()
    with pytest.raises(ConnectionClosed) as told:
        consumer.receive()
    assert told.value.rcvd.code == 1011
    assert told.value.rcvd.reason.startswith(str(queue.folder)[:100])


def test_consumers_of_both_work_on_what_both_submit(producer, consumer, queue):
    own = queue.submit_lines(1, "-m", "tenant=acme")
    [[chunk, submission]] = consumer.reserve()
    assert (chunk["input_content"], submission["strategic_metadata"]) == (b"0\n", {})
    consumer.complete(chunk, b"done\n")
    assert queue.ok("wait", own).status == 0
    assert queue.ok("results", own).out == b"done\n"
    submission_id = producer.insert({"Direct": {"contents": [[104, 105]]}}, metadata=[97])
    assert queue.ok("consume", "--until-empty", "--", "cat").status == 0
    assert queue.ok("results", str(submission_id)).out == b"hi"


def test_own_consumers_leave_chunks_that_are_elsewhere_unharmed(producer, consumer, queue):
    submission_id = producer.stored("elsewhere", 1)
    refused = queue("consume", "--until-empty", "--", "cat")
    assert refused.status != 0
    assert "its producer keeps it elsewhere" in refused.err
    [[chunk, _]] = consumer.reserve()
    assert (chunk["submission_id"], chunk["retries"]) == (submission_id, 0)


def test_ten_failures_of_a_chunk_fail_its_submission(producer, consumer):
    submission_id = producer.stored("failing", 1)
    for attempt in range(10):
        [[chunk, _]] = consumer.reserve()
        assert chunk["retries"] == attempt
        consumer.fail(chunk, f"ZeroDivisionError é {attempt}")
    submission, failed = state(producer, submission_id, "Failed")
    assert (submission["id"], submission["failed_chunk_id"]) == (submission_id, 0)
    assert {key: failed[key] for key in ("chunk_index", "failure")} == {
        "chunk_index": 0,
        "failure": "ZeroDivisionError é 9",
    }


def test_reserve_waits_for_work_and_for_what_others_give_back(producer, consumer, address):
    nonce = consumer.ask()
    submission_id = producer.stored("late", 1)
    [[chunk, _]] = consumer.answer(nonce)
    with contextlib.closing(Consumer(address)) as other:
        nonce = other.ask()
        consumer.close()
        [[again, _]] = other.answer(nonce)
        assert (again, again["retries"]) == (chunk, 0)
        other.complete(again)
        state(producer, submission_id, "Completed")


def test_several_reserves_wait_on_one_connection(producer, consumer):
    nonces = {consumer.ask(), consumer.ask(strategy="Random")}
    producer.stored("two", 2)
    syncs = [consumer.receive()["Sync"] for _ in nonces]
    assert {sync["nonce"] for sync in syncs} == nonces
    assert {sync["contents"]["ChunksReserved"]["Ok"][0][0]["chunk_index"] for sync in syncs} == {0, 1}


def test_none_and_many_chunks_can_be_asked_for(producer, consumer):
    nonce = consumer.ask(0)
    assert consumer.receive() == {"Sync": {"nonce": nonce, "contents": {"ChunksReserved": {"Err": []}}}}
    producer.stored("many", 5)
    assert [chunk["chunk_index"] for chunk, _ in consumer.reserve(1 << 63)] == [0, 1, 2, 3, 4]


def test_prefer_distinct_takes_turns(producer, consumer):
    for tenant in (1, 1, 2):
        producer.stored(f"of-{tenant}-{os.urandom(4).hex()}", 1, strategic_metadata={"tenant": tenant})
    strategy = {"PreferDistinct": {"meta_key": "tenant", "underlying": "Oldest"}}
    tenants = [consumer.reserve(1, strategy)[0][1]["strategic_metadata"]["tenant"] for _ in range(3)]
    assert tenants == [1, 2, 1]


def test_cancelled_submission_is_shown_as_failed_and_found_no_more(producer):
    submission_id = producer.stored("unwanted", 2, strategic_metadata={"a": 1, "b": 2})
    ids = "/submissions/lookup_ids_by_strategic_metadata"
    assert producer.client.post(ids, json={"b": 2}).json() == [submission_id]
    cancelled = producer.client.post(f"/submissions/cancel/{submission_id}")
    assert (cancelled.status_code, cancelled.content) == (200, b"")
    assert producer.status(submission_id)["Failed"][1]["failure"] == "The submission was cancelled."
    again = producer.client.post(f"/submissions/cancel/{submission_id}")
    assert (again.status_code, list(again.json())) == (409, ["Failed"])
    assert producer.client.post("/submissions/cancel/1").status_code == 404
    assert producer.client.post(ids, json={}).json() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b'{"chunk_contents": {}}', b'{"chunk_contents": {"Direct": {"contents": [[300]]}}}'],
)
def test_bodies_that_are_no_submission_are_refused(producer, body):
    refused = producer.client.post("/submissions", content=body)
    assert (refused.status_code, refused.json()["code"]) == (400, "http")


def test_keys_that_opsq_does_not_have_and_long_bodies_are_refused(producer):
    refused = producer.client.post(
        "/submissions",
        json={"chunk_contents": {"SeeObjectStorage": {"prefix": "p", "count": 1}}, "strategic_metadata": {"a b": 1}},
    )
    assert refused.status_code == 400
    assert "a b" in refused.json()["detail"]
    assert producer.client.post("/submissions", content=bytes((16 << 20) + 1)).status_code == 413


@pytest.mark.parametrize("path", ["submissions", "submissions/lookup_ids_by_strategic_metadata"])
def test_producer_with_an_unknown_token_is_refused_before_it_sends_a_body(address, path):
    host, _, port = address.rpartition(":")
    lines = (
        f"POST /producer/{path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {'x' * 64}",
        "Content-Length: 2",
        "Expect: 100-continue",
    )
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        assert connection.makefile("rb").readline() == b"HTTP/1.1 401 Unauthorized\r\n"


@pytest.mark.parametrize("message", [b"\xff", b"", "text"])
def test_what_is_no_message_ends_only_its_connection(consumer, address, message):
    consumer.socket.send(message)
    with pytest.raises(ConnectionClosed):
        consumer.receive()
    with contextlib.closing(Consumer(address)) as other:
        assert other.init["heartbeat_interval"]["secs"] > 0


def test_daemon_may_be_restarted_while_consumers_wait(producer, consumer, queue):
    nonce = consumer.ask()
    queue.ok("restart")
    submission_id = producer.stored("after", 1)
    [[chunk, _]] = consumer.answer(nonce)
    consumer.complete(chunk)
    state(producer, submission_id, "Completed")


def test_without_a_daemon_consumers_are_not_let_in(opsq):
    with opsq.running("gateway", "--listen", "127.0.0.1:0") as process:
        address = process.stdout.readline().decode().strip().removeprefix("http://")
        with pytest.raises(InvalidStatus) as refused:
            Consumer(address)
        assert refused.value.response.status_code == 503
        assert httpx.get(f"http://{address}/ping", trust_env=False, timeout=DEADLINE_S).status_code == 503


def test_gateway_ends_while_consumers_wait_and_their_chunks_are_free(producer, queue):
    producer.stored("held", 1)
    with queue.running("gateway", "--listen", "127.0.0.1:0") as process:
        address = process.stdout.readline().decode().strip().removeprefix("http://")
        with contextlib.closing(Consumer(address)) as consumer:
            [[chunk, _]] = consumer.reserve()
            consumer.ask()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, err) == (0, b"")
    with contextlib.closing(Consumer(producer.client.base_url.netloc.decode())) as other:
        assert other.reserve()[0][0] == chunk


def test_url_that_ends_in_a_slash_works(address, producer):
    assert httpx.get(f"http://{address}//producer/version", trust_env=False).text == "v0.30.3"
    assert httpx.get(f"http://{address}/ping", trust_env=False).text == "pong"
    with contextlib.closing(Consumer(f"{address}/")) as consumer:
        submission_id = producer.stored("slash", 1)
        assert consumer.reserve()[0][0]["submission_id"] == submission_id


def test_curl_lines_of_the_manual_work(address, queue):
    manual = (Path(__file__).parents[2] / "man" / "opsq-gateway.1").read_text().replace("\\-", "-")
    section = manual.partition(".SS Opsqueue")[2].partition(".SS Errors")[0]
    lines = [line for line in section.splitlines() if line.startswith("curl ")]
    assert [queue.shell(line.replace("localhost:7480", address)).text for line in lines] == ["pong", "0"]


STORY = """
import asyncio, multiprocessing, sys
from opsqueue.consumer import ConsumerClient, Strategy
from opsqueue.producer import ProducerClient, SubmissionFailedError

address, store = sys.argv[1:]

def consume(strategy, f):
    ConsumerClient(address, store).run_each_op(f, strategy=strategy)

def consuming(strategy, f):
    process = multiprocessing.get_context("fork").Process(target=consume, args=(strategy, f), daemon=True)
    process.start()
    return process

producer = ProducerClient(address, store)
print(producer.server_version())
basic = [Strategy.Random(), Strategy.Oldest(), Strategy.Newest()]
for strategy in basic + [Strategy.PreferDistinct(meta_key="id", underlying=one) for one in basic]:
    process = consuming(strategy, lambda n: n + 1)
    print(sum(producer.run_submission(range(100), chunk_size=20, metadata=b"\\0", strategic_metadata={"id": 42})))
    process.terminate()

async def run():
    return [n async for n in await producer.async_run_submission(range(3), chunk_size=1)]

process = consuming(Strategy.Random(), lambda n: 6 // n)
print(list(producer.run_submission([], chunk_size=1)))
try:
    list(producer.run_submission(range(2), chunk_size=1))
except SubmissionFailedError as error:
    print("ZeroDivisionError" in error.failure)
process.terminate()
process = consuming(Strategy.Random(), lambda n: n * n)
print(asyncio.run(run()))
process.terminate()
"""


def wheel_python(folder: Path) -> str | None:
    """A Python with the client of Opsqueue in it, made in `folder`; None where that cannot be."""
    known = Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")
    for program in [shutil.which("python3.12"), *map(str, known)]:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if program is not None:
                options = {"check": True, "capture_output": True, "timeout": 600}
                subprocess.run([program, "-m", "venv", str(folder)], **options)
                subprocess.run([folder / "bin" / "pip", "install", "opsqueue==0.30.3"], **options)
                return str(folder / "bin" / "python")
    return None


def test_unmodified_client_goes_through_all_its_strategies(address, producer, tmp_path):
    python = wheel_python(tmp_path / "venv")
    if python is None:  # there is no CPython 3.12: what the client does is done by hand
        print("without the wheel", file=sys.stderr)
        for strategy in ("Random", "Oldest", "Newest"):
            for wanted in (strategy, {"PreferDistinct": {"meta_key": "id", "underlying": strategy}}):
                submission_id = producer.stored(os.urandom(8).hex(), 5, strategic_metadata={"id": 42})
                with contextlib.closing(Consumer(address)) as consumer:
                    for _ in range(5):
                        consumer.complete(consumer.reserve(1, wanted)[0][0])
                    state(producer, submission_id, "Completed")
        return
    store = f"file://{tmp_path}/store"
    done = subprocess.run(
        [python, "-c", STORY, address, store], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["v0.30.3", *["5050"] * 6, "[]", "True", "[0, 1, 4]", ""]
