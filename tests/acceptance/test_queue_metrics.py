"""Metrics under the names of SuperQueue and Opsqueue, as dashboards and scalers made for those read them."""

from io import StringIO

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_fd_to_metric_families as parse

from acceptance.test_monitoring import OPENMETRICS
from acceptance.test_records import get, http  # noqa: F401  # a fixture

WATCHED = {
    "queued_messages",
    "delayed_messages",
    "in_flight_messages",
    "queue_max_len",
    "total_queued_messages",
    "queued_messages_size",
    "mem_bytes_heap",
    "mem_bytes_sys",
}


def numbers(text):
    """Each number by its name, and by its queue where it has the label."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(StringIO(text))
        for sample in family.samples
        if not sample.name.startswith("opsq_")
    }


@pytest.fixture
def metrics(http):  # noqa: F811
    """What `/metrics`, or another path, says now beside our own names."""
    return lambda path="/metrics": numbers(http.get(path).raise_for_status().text)


def test_a_queue_tells_what_superqueue_would(queue, http, metrics):  # noqa: F811
    queue.ok("queue", "create", "mails", "--limit", "3")
    for payload in ("a", "bb", "ccc"):
        assert http.post("/queues/mails/record", json={"payload": payload}).status_code == 204
    assert http.post("/queues/mails/record", json={"payload": "dddd"}).status_code == 409
    record = get(http, "/queues/mails/record")
    assert http.post(f"/queues/mails/nack/{record['id']}", json={"delay_ms": 10**7}).status_code == 200
    get(http, "/queues/mails/record")
    found = metrics("/queues/mails/metrics")
    assert {name for (name,) in found} == WATCHED
    assert {name: found[name,] for name in WATCHED if not name.startswith("mem_")} == {
        "queued_messages": 1,
        "delayed_messages": 1,
        "in_flight_messages": 1,
        "queue_max_len": 3,
        "total_queued_messages": 3,
        "queued_messages_size": 6,
    }
    assert found["mem_bytes_sys",] >= found["mem_bytes_heap",] > 1 << 20
    others = metrics()
    assert others["queued_messages", "mails"] == 1
    assert others["total_queued_messages", "mails"] == 3
    assert others["queued_messages",] == 0
    assert others["queue_max_len",] == float("inf")


def test_the_default_queue_has_no_label_and_what_is_no_queue_is_not_shown(queue, http, metrics):  # noqa: F811
    queue.submit_lines(2, "-m", "queue=two words")
    queue.submit_lines(2, "-m", "queue=7")
    http.post("/record", json={"payload": "a"})
    found = metrics()
    assert found["queued_messages",] == found["total_queued_messages",] == 1
    assert {key for key in found if key[0] == "queued_messages"} == {("queued_messages",)}
    assert metrics("/queues/default/metrics")["queued_messages",] == 1
    assert metrics("/queues/never/metrics")["queued_messages",] == 0
    assert http.get("/queues/two words/metrics").status_code == 400


def test_what_is_done_leaves_the_gauges_and_stays_in_the_counters(queue, http, metrics):  # noqa: F811
    http.post("/record", json={"payload": "a"})
    http.post(f"/ack/{get(http)['id']}")
    queue.submit_lines(1, "--max-attempts", "1", "--on-dead", "keep")
    queue.ok("fail", "--no-retry", queue.reserve())
    queue.submit_lines(2)
    queue.reserve()
    found = metrics()
    assert (found["queued_messages",], found["in_flight_messages",], found["total_queued_messages",]) == (0, 0, 1)
    assert found["chunks_in_backlog_count",] == 2
    assert found["reserver_chunks_reserved_count",] == 1
    assert (found["chunks_completed_count",], found["chunks_failed_count",]) == (1, 1)


def test_openmetrics_has_them_too(http):  # noqa: F811
    http.post("/queues/mails/record", json={"payload": "a"})
    for path in ("/metrics", "/queues/mails/metrics"):
        reply = http.get(path, headers={"Accept": OPENMETRICS})
        assert reply.headers["content-type"].startswith("application/openmetrics-text")
        assert {family.name for family in parse_openmetrics(reply.text)} >= WATCHED
