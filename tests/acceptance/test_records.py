"""Records over HTTP, as a client of SuperQueue meets them."""

import concurrent.futures
import contextlib
import os
import re
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from waiting import wait_until

DEADLINE_S = 180
PAGE = Path(__file__).parents[2] / "man" / "opsq-gateway.1"


@contextlib.contextmanager
def gateway(queue, *options):
    """A gateway that is ready, as a client with its URL; ended by SIGTERM."""
    with (
        queue.running("gateway", "--listen", "127.0.0.1:0", *options) as process,
        httpx.Client(base_url=process.stdout.readline().decode().strip(), timeout=DEADLINE_S, trust_env=False) as http,
    ):
        yield http
        if process.poll() is None:
            process.terminate()
        assert process.wait(DEADLINE_S) == 0


@pytest.fixture
def http(queue):
    """A client of a gateway in front of a running daemon."""
    with gateway(queue) as client:
        yield client


def answer(reply):
    """What a client sees of a reply."""
    return reply.status_code, reply.text


def get(http, path="/record", wait_s=120):
    """The record that comes, which it must."""
    reply = http.get(path, params={"wait": wait_s})
    assert reply.status_code == 200
    return reply.json()


def test_a_record_is_posted_got_and_acknowledged_once(queue, http):
    assert answer(http.post("/record", json={"payload": "hey! ü"})) == (204, "")
    record = http.get("/record").json()
    assert sorted(record) == ["attempts", "id", "payload"]
    assert (record["payload"], record["attempts"]) == ("hey! ü", 1)
    assert answer(http.get("/record")) == (204, "")
    assert answer(http.post(f"/ack/{record['id']}")) == (200, "")
    assert answer(http.get("/record")) == (204, "")
    assert answer(http.post(f"/nack/{record['id']}")) == (404, "Record not found")
    assert answer(http.post(f"/touch/{record['id']}")) == (404, "Record not found")
    assert queue.ok("status", "--json").json["total"]["completed"] == 1


def test_a_record_that_is_not_acknowledged_comes_again_with_one_more_attempt(queue, http):
    queue.ok("queue", "create", "mails", "--backoff", "0s")
    http.post("/queues/mails/record", json={"payload": "a"})
    record = get(http, "/queues/mails/record")
    assert answer(http.post(f"/queues/mails/nack/{record['id']}")) == (200, "")
    again = get(http, "/queues/mails/record")
    assert (again["payload"], again["attempts"]) == ("a", 2)
    assert answer(http.post(f"/nack/{record['id']}")) == (404, "Record not found")
    assert answer(http.post(f"/nack/{again['id']}", json={"delay_ms": 0})) == (200, "")
    assert get(http, "/queues/mails/record")["attempts"] == 3


def test_nack_waits_for_the_back_off_unless_a_delay_is_given(queue, http):
    queue.ok("queue", "create", "mails", "--backoff", "1h")
    http.post("/queues/mails/record", json={"payload": "a"})
    record = get(http, "/queues/mails/record")
    http.post(f"/nack/{record['id']}", json={"delay_ms": 10})
    record = get(http, "/queues/mails/record")
    http.post(f"/nack/{record['id']}")
    assert answer(http.get("/queues/mails/record")) == (204, "")
    assert queue.ok("status", "--json").json["total"]["delayed"] == 1


def test_a_delayed_record_comes_when_its_time_has_come(http):
    http.post("/record", json={"payload": "later", "delay_ms": 3_600_000})
    http.post("/record", json={"payload": "soon", "delay_ms": 300.5})
    http.post("/record", json={"payload": "past", "delay_ms": -5})
    assert get(http)["payload"] == "past"
    assert get(http)["payload"] == "soon"
    assert answer(http.get("/record")) == (204, "")


def test_a_record_whose_lease_has_ended_is_offered_again(queue, http):
    queue.ok("queue", "create", "mails", "--lease", "0.3")
    http.post("/queues/mails/record", json={"payload": "a"})
    get(http, "/queues/mails/record")
    assert get(http, "/queues/mails/record")["attempts"] == 2


def test_touch_starts_the_time_of_a_record_anew(queue, http):
    queue.ok("queue", "create", "mails", "--lease", "1h")
    http.post("/queues/mails/record", json={"payload": "a"})
    record = get(http, "/queues/mails/record")
    assert answer(http.post(f"/touch/{record['id']}")) == (200, "")
    assert answer(http.post(f"/ack/{record['id']}")) == (200, "")


def test_a_get_that_waits_gets_what_comes_later_and_nothing_when_its_time_is_over(queue, http):
    assert answer(http.get("/record", params={"wait": 0.2})) == (204, "")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(get, http)
        wait_until(lambda: queue.ok("status", "--json").json["parked"] == 1, DEADLINE_S, "it waits")
        http.post("/record", json={"payload": "a"})
        assert waiting.result()["payload"] == "a"


def test_a_client_that_goes_away_while_it_waits_takes_nothing(queue, http):
    place = urlsplit(str(http.base_url))
    with socket.create_connection((place.hostname, place.port)) as client:
        client.sendall(b"GET /record?wait=600 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: queue.ok("status", "--json").json["parked"] == 1, DEADLINE_S, "it waits")
    wait_until(lambda: queue.ok("status", "--json").json["parked"] == 0, DEADLINE_S, "it waits no more")
    http.post("/record", json={"payload": "a"})
    assert get(http)["attempts"] == 1


def test_a_client_that_goes_away_before_it_is_answered_takes_nothing(queue, http):
    http.post("/record", json={"payload": "a"})
    pid = queue.ok("status", "--json").json["pid"]
    place = urlsplit(str(http.base_url))
    os.kill(pid, signal.SIGSTOP)
    try:
        with socket.create_connection((place.hostname, place.port), DEADLINE_S) as client:
            client.sendall(b"GET /record HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""  # the gateway has seen it go
    finally:
        os.kill(pid, signal.SIGCONT)
    assert get(http)["attempts"] == 1


def test_a_record_that_cannot_be_read_fails_and_the_next_is_given(queue, http):
    for name in ("lost.txt", os.fsdecode(b"lost \xff.txt")):
        lost = queue.folder / name
        lost.write_bytes(b"a\n")
        queue.ok("submit", "--in-place", "--max-attempts", "1", "-m", "queue=default", str(lost))
        lost.unlink()
    http.post("/record", json={"payload": "b"})
    record = get(http)
    assert (record["payload"], record["attempts"]) == ("b", 1)
    assert answer(http.get("/record", params={"wait": 0.1})) == (204, "")
    reasons = [chunk["reason"] for chunk in queue.ok("dead", "list", "--json").json["chunks"]]
    assert sorted(reason.rpartition("/")[2] for reason in reasons) == ["lost \\xff.txt is gone.", "lost.txt is gone."]


def test_a_record_that_only_this_gateway_cannot_read_is_offered_again(queue, http):
    folder = queue.folder / os.fsdecode(b"away \xff")
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a\n")
    queue.ok("submit", "--in-place", "-m", "queue=default", str(folder / "a.txt"))
    away = folder.rename(queue.folder / "elsewhere")
    refused = http.get("/record")
    assert (refused.status_code, refused.json()["code"]) == (503, "store_not_visible")
    assert "away \\xff/a.txt cannot be read from here" in refused.json()["detail"]
    away.rename(folder)
    record = get(http)
    assert (record["payload"], record["attempts"]) == ("a\n", 1)


def test_waiting_gets_are_answered_when_the_gateway_stops(queue):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with gateway(queue) as http:
            waiting = pool.submit(http.get, "/record", params={"wait": 600})
            wait_until(lambda: queue.ok("status", "--json").json["parked"] == 1, DEADLINE_S, "it waits")
        assert answer(waiting.result()) == (204, "")


def test_an_id_outlives_gateway_and_daemon(queue):
    with gateway(queue) as http:
        http.post("/record", json={"payload": "a"})
        http.post("/record", json={"payload": "b"})
        first, second = get(http)["id"], get(http)["id"]
    queue.ok("restart")
    with gateway(queue) as http:
        assert answer(http.post(f"/ack/{first}")) == (200, "")
        assert answer(http.post(f"/nack/{second}", json={"delay_ms": 0})) == (200, "")
        assert get(http)["payload"] == "b"
    assert queue.ok("status", "--json").json["total"]["completed"] == 1


def test_an_id_is_a_handle(queue, http):
    http.post("/record", json={"payload": "a"})
    handle = get(http)["id"]
    assert queue.ok("read", handle).out == b"a"
    queue.ok("complete", handle)
    assert answer(http.get("/record")) == (204, "")


def test_a_full_queue_refuses_and_takes_again_when_a_record_is_done(queue, http):
    queue.ok("queue", "create", "mails", "--limit", "2")
    post = {"url": "/queues/mails/record", "json": {"payload": "a"}}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = sorted(answer(each.result()) for each in [pool.submit(http.post, **post) for _ in range(5)])
    assert answers == [(204, "")] * 2 + [(409, "Could exceed queue max length")] * 3
    assert http.post("/record", json={"payload": "other"}).status_code == 204
    http.post(f"/ack/{get(http, '/queues/mails/record')['id']}")
    assert answer(http.post(**post)) == (204, "")
    assert http.post(**post).status_code == 409


def test_a_daemon_without_room_refuses_with_its_reason(opsq):
    opsq.ok("start", "--max-backlog-chunks", "1")
    with gateway(opsq) as http:
        assert http.post("/record", json={"payload": "a"}).status_code == 204
        refused = http.post("/record", json={"payload": "b"})
        assert refused.status_code == 409
        assert "1" in refused.text


def test_a_record_expires_when_its_time_is_over(queue, http):
    queue.ok("queue", "create", "mails", "--expires", "0.2")
    http.post("/queues/mails/record", json={"payload": "a"})
    wait_until(
        lambda: queue.ok("status", "--json").json["states"]["expired"] == 1, DEADLINE_S, "the record has expired"
    )
    assert answer(http.get("/queues/mails/record")) == (204, "")


def test_a_record_without_attempts_left_is_dead_and_the_others_are_not(queue, http):
    queue.ok("queue", "create", "mails", "--max-attempts", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: http.post("/queues/mails/record", json={"payload": "a"}), range(8)))
    http.post(f"/nack/{get(http, '/queues/mails/record')['id']}")
    total = queue.ok("status", "--json").json["total"]
    assert (total["dead"], total["waiting"]) == (1, 7)
    (dead,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert dead["reason"] == "nack"


def test_queues_are_apart_and_take_what_others_submit(queue, http):
    http.post("/queues/mails/record", json={"payload": "a"})
    assert answer(http.get("/record")) == (204, "")
    assert answer(http.get("/queues/jobs/record")) == (204, "")
    queue.ok("submit", "--lines", "1", "-m", "queue=jobs", "-", stdin=b"x\n\xff\n")
    assert [get(http, "/queues/jobs/record")["payload"] for _ in range(2)] == ["x\n", "�\n"]
    assert get(http, "/queues/mails/record")["payload"] == "a"


def test_records_that_come_together_are_few_submissions_and_each_is_handed_out_once(queue, http):
    payloads = [f"{number} " + "x" * (number % 3 * 4000) for number in range(120)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        posts = list(pool.map(lambda payload: http.post("/record", json={"payload": payload}).status_code, payloads))
        assert set(posts) == {204}
        records = list(pool.map(lambda _: http.get("/record").json(), payloads))
        assert sorted(record["payload"] for record in records) == sorted(payloads)
        acks = list(pool.map(lambda record: http.post(f"/ack/{record['id']}").status_code, records))
    assert set(acks) == {200}
    assert answer(http.get("/record")) == (204, "")
    total = queue.ok("status", "--json").json["total"]
    assert total["completed"] == 120


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"{}",
            b'{"payload":""}',
            b'{"payload":1}',
            b'{"payload":"\xff"}',
            b'{"payload":"\\ud800"}',
        ),
        *(b'{"payload":"a","delay_ms":"x"}', b'{"payload":"a","delay_ms":1e300}', b'{"payload":"a","delay_ms":1e999}'),
    ],
)
def test_a_wrong_body_is_refused(http, body):
    assert answer(http.post("/record", content=body)) == (400, '{"message":"Invalid body"}')


def test_what_is_no_request_is_refused(http):
    http.post("/record", json={"payload": "a"})
    record = get(http)
    assert http.post(f"/nack/{record['id']}", content=b"x").status_code == 400
    assert answer(http.post("/ack/nonsense")) == (400, "Bad record ID given")
    assert answer(http.post(f"/ack/{record['id'][:-1]}")) == (404, "Record not found")
    assert http.post("/queues/a%20b/record", json={"payload": "a"}).status_code == 400
    assert {http.get("/record", params={"wait": wait}).status_code for wait in ("x", "-1", "1e9", "NaN")} == {400}
    assert http.post("/record", content=b"x" * (1 << 21)).status_code == 413
    assert http.put("/record").status_code == 405
    assert answer(http.post(f"/ack/{record['id']}")) == (200, "")


def test_a_head_takes_nothing(http):
    http.post("/record", json={"payload": "a"})
    assert http.head("/record").status_code == 405
    assert get(http)["attempts"] == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_in_a_page_of_another_site_takes_no_record(http, site):
    http.post("/record", json={"payload": "a"})
    for destination in ("image", "document"):
        reply = http.get("/record", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": destination})
        assert (reply.status_code, reply.json()["code"]) == (403, "http")
    reply = http.get("/record", headers={"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"})
    assert reply.json()["attempts"] == 1


def test_roles_of_a_token_hold(queue, http):
    token = queue.ok("token", "create", "etl", "--role", "producer").text
    shown = {"Authorization": f"Bearer {token}"}
    assert http.post("/record", json={"payload": "a"}, headers=shown).status_code == 204
    refused = http.get("/record", headers=shown)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_permitted")
    assert get(http)["payload"] == "a"


def test_curl_lines_of_the_manual_do_what_it_says(queue, http):
    section = PAGE.read_text().partition(".SS Records")[2].partition("\n.SS ")[0].replace("\\-", "-")
    lines = [line.replace("localhost:7480", http.base_url.netloc.decode()) for line in section.splitlines()]
    lines = [line for line in lines if line.startswith("curl ")]
    assert [re.search(r"/(record|ack|nack|touch|metrics)\b", line)[1] for line in lines] == [
        "record",
        "record",
        "ack",
        "nack",
        "touch",
        "metrics",
    ]
    posting, getting, *verdicts, measuring = (
        line.replace("curl ", "curl -s -w '\\n%{http_code}' ", 1) for line in lines
    )
    for verdict in verdicts:
        assert queue.shell(posting).text == "\n204"
        found = re.fullmatch(r'\{"id":"(.*)","payload":"hey!","attempts":[12]\}\n200', queue.shell(getting).text)
        assert queue.shell(f"ID={found[1]}; {verdict}").text == "\n200"
    assert "\ntotal_queued_messages 3.0\n" in queue.shell(measuring).text
