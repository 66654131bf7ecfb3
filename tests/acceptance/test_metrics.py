"""opsq metrics: what node_exporter's textfile collector is given, without the packages of the gateway."""

import os
import subprocess
import sys
from io import StringIO

from prometheus_client.parser import text_fd_to_metric_families as parse

from waiting import wait_until

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(["prometheus_client", "starlette", "uvicorn"]))
sys.argv = ["opsq", "metrics"]
from opsq.__main__ import main
main()
"""


def samples(text):
    """Each number by its name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse(StringIO(text))
        for sample in family.samples
    }


def test_metrics_say_what_status_says_and_what_became_of_chunks(queue):
    queue.submit_lines(5, "-m", "tenant=acme", "--on-dead", "keep")
    queue.submit_lines(2, "-m", "tenant=7")
    queue.ok("complete", queue.reserve())
    queue.ok("fail", "--no-retry", queue.reserve())
    queue.reserve()
    found = samples(queue.ok("metrics", "--by", "tenant").out.decode())
    status = queue.ok("status", "--json").json
    for state in ("waiting", "delayed", "reserved", "completed", "dead", "skipped"):
        assert found["opsq_chunks", ("state", state)] == status["total"][state]
    assert found["opsq_submissions", ("state", "open")] == 2
    assert found["opsq_chunk_events_total", ("event", "completed")] == 1
    assert found["opsq_chunk_events_total", ("event", "dead")] == 1
    assert found["opsq_chunk_run_seconds_count",] == 2
    assert found["opsq_oldest_waiting_seconds",] > 0
    assert found["opsq_reserve_duration_seconds_count",] == 3
    assert found["opsq_reserve_duration_seconds_sum",] > 0
    assert found["opsq_commit_duration_seconds_count",] > 0
    assert found["opsq_build_info", ("version", status["server"])] == 1
    acme = ("key", "tenant"), ("state", "waiting"), ("value", "acme")
    assert found["opsq_value_chunks", *acme] == 2
    assert found["opsq_value_submissions", ("key", "tenant"), ("value", "7")] == 1
    document = queue.ok("metrics", "--json").json
    [chunks] = [metric for metric in document["metrics"] if metric["name"] == "opsq_chunks"]
    assert chunks["samples"][0] == {"name": "opsq_chunks", "labels": {"state": "waiting"}, "value": 4}


def test_a_connected_consumer_is_counted_while_it_waits(queue):
    assert samples(queue.ok("metrics").out.decode())["opsq_consumers",] == 0
    with queue.running("consume", "--", "cat"):
        wait_until(lambda: samples(queue.ok("metrics").out.decode())["opsq_consumers",] == 1, 180, "a consumer")
        assert samples(queue.ok("metrics").out.decode())["opsq_unmatched_chunks",] == 0


def test_file_is_replaced_whole_or_stays_as_it_was(queue):
    queue.ok("metrics", "-o", "opsq.prom")
    written = (queue.folder / "opsq.prom").read_text()
    assert samples(written)["opsq_daemon_state", ("state", "running")] == 1
    assert sorted(os.listdir(queue.folder)) == ["opsq.prom", "s"]
    queue.ok("stop")
    refused = queue("metrics", "-o", "opsq.prom")
    assert refused.status == 4
    assert (queue.folder / "opsq.prom").read_text() == written
    assert queue("metrics", "--by", "submission").status == 2
    assert queue("metrics", "--by", "no key").status == 2


def test_a_file_that_cannot_be_written_is_named(queue):
    refused = queue("metrics", "-o", "missing/opsq.prom")
    assert refused.status == 2
    assert "missing/opsq.prom" in refused.err or "missing" in refused.err


def test_needs_nothing_of_the_gateway(queue):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env=queue.environ,
        cwd=queue.folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("opsq_parked_calls",) in samples(done.stdout)
