"""W3C trace context from the command that submits to the program that works, and over HTTP in and out."""

import contextlib
import json

import httpx
import pytest

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
OTHER = f"00-{TRACE}-aaaaaaaaaaaaaaaa-01"
EXPORTING = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

out = open({path!r}, "a")
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)
"""
"""What opentelemetry-instrument does before a program starts: spans are written in batches, the first after an hour."""


@pytest.fixture
def http(queue):
    """A client of a gateway in front of a running daemon; the environment of the gateway is of no account."""
    queue.environ["TRACEPARENT"] = OTHER
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(queue.running("gateway", "--listen", "127.0.0.1:0"))
        del queue.environ["TRACEPARENT"]
        url = process.stdout.readline().decode().strip()
        yield stack.enter_context(httpx.Client(base_url=url, timeout=180, trust_env=False))


def submit(queue, content, *words, **variables):
    ran = queue("submit", "-", *words, stdin=content, environ=queue.environ | variables)
    assert ran.status == 0
    return ran.text


def test_program_gets_the_context_of_the_command_that_submitted(queue):
    submission_id = submit(queue, b"a", TRACEPARENT=PARENT, TRACESTATE="vendor=1")
    queue.environ["TRACEPARENT"] = OTHER  # of the consumer
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$TRACEPARENT $TRACESTATE"')
    assert queue.ok("results", submission_id).text == f"{PARENT} vendor=1"


def test_show_names_the_trace(queue):
    submission_id = submit(queue, b"a", TRACEPARENT=PARENT)
    assert ["trace", PARENT] in [line.split("\t") for line in queue.ok("show", submission_id).lines]
    assert queue.ok("show", submission_id, "--json").json["traceparent"] == PARENT
    assert "traceparent" not in queue.ok("show", submit(queue, b"a"), "--json").json


def test_program_without_one_has_that_of_the_consumer(queue):
    submission_id = submit(queue, b"a")
    queue.environ["TRACEPARENT"] = OTHER
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$TRACEPARENT"')
    assert queue.ok("results", submission_id).text == OTHER


def test_what_is_no_context_is_none_and_no_error(queue):
    submission_id = submit(queue, b"a", TRACEPARENT="nonsense")
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "<$TRACEPARENT>"')
    assert queue.ok("results", submission_id).text == "<>"


def test_work_that_submits_work_hands_it_on(queue):
    submit(queue, b"a", "-m", "step=1", TRACEPARENT=PARENT)
    queue.environ["OPSQ"] = queue.program[0]
    script = 'printf b | "$OPSQ" submit - -m step=2'
    queue.ok("consume", "-s", "SelectOnly(step=1)", "--until-empty", "--", "sh", "-c", script)
    second = queue.ok("list", "-m", "step=2", "--json").json["submissions"][0]["submission_id"]
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$TRACEPARENT"')
    assert queue.ok("results", second).text == PARENT


def test_records_bring_their_context_and_take_it_along(queue, http):
    headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert http.post("/record", json={"payload": "a"}, headers=headers).status_code == 204
    got = http.get("/record")
    assert (got.headers["traceparent"], got.headers["tracestate"]) == (PARENT, "vendor=1")
    assert http.post("/record", json={"payload": "b"}, headers={"traceparent": "nonsense"}).status_code == 204
    assert "traceparent" not in http.get("/record").headers
    two = [("host", http.base_url.netloc.decode()), ("traceparent", PARENT), ("traceparent", OTHER)]
    assert http.send(
        httpx.Request("POST", http.base_url.join("/record"), json={"payload": "c"}, headers=two)
    ).is_success
    assert "traceparent" not in http.get("/record").headers


def test_submission_over_http_carries_the_context_of_its_request(queue, http):
    made = http.post(
        "/api/v1/submissions", content=b"a\n", headers={"traceparent": PARENT, "content-type": "text/plain"}
    )
    submission_id = made.json()["submission_id"]
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$TRACEPARENT"')
    assert queue.ok("results", submission_id).text == PARENT


def test_records_that_come_together_keep_each_its_own(queue, http):
    def parent(number):
        return f"00-{number + 1:032x}-00f067aa0ba902b7-01"

    for number in range(20):
        size = 5000 if number % 5 == 0 else 1
        body = {"payload": f"{number}:".ljust(size, "x")}
        http.post("/record", json=body, headers={"traceparent": parent(number)} if number % 2 else {})
    for _ in range(20):
        got = http.get("/record")
        number = int(got.json()["payload"].partition(":")[0])
        assert got.headers.get("traceparent") == (parent(number) if number % 2 else None)


def test_program_of_a_record_gets_its_context(queue, http):
    http.post("/record", json={"payload": "a"}, headers={"traceparent": PARENT})
    queue.ok("consume", "--until-empty", "--clean-env", "--", "sh", "-c", 'echo "$TRACEPARENT" > traced')
    assert (queue.folder / "traced").read_text() == f"{PARENT}\n"


def test_spans_of_a_command_are_written_before_it_ends(queue):
    path = queue.folder / "spans"
    queue.file("sitecustomize.py", EXPORTING.format(path=str(path)).encode())
    queue.file("in", b"a\n")
    queue.environ["PYTHONPATH"] = str(queue.folder)
    for words in (["submit", "in"], ["consume", "--until-empty", "--", "sh", "-c", 'echo "$TRACEPARENT" > traced']):
        with queue.running(*words) as process:
            assert process.wait(180) == 0
    send, process = map(json.loads, path.read_text().splitlines())
    assert (send["name"], process["name"]) == ("send opsq", "process opsq")
    assert process["parent_id"] == send["context"]["span_id"]
    assert process["context"]["span_id"].removeprefix("0x") == (queue.folder / "traced").read_text().split("-")[2]
