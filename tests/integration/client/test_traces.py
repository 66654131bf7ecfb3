"""Traces through a queue: a submission carries its producer's context, and consumers make spans of it.

In a process of its own, since nobody else shall find OpenTelemetry imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import opsq

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")


def work(chunk):
    with tracer.start_as_current_span("inside"):
        if chunk.index == 1 and chunk.attempt == 0:
            raise ValueError("not yet")
        return b"result"


with opsq.Queue.open(sys.argv[1]) as queue:
    with tracer.start_as_current_span("producer"):
        submission = queue.submit([b"a", b"b"], backoff=(0.0, 1.0, 0.0))
    with queue.consumer("OldestFirst") as consumer:
        consumer.run_each_chunk(work)
    untraced = queue.submit([b"c"])
    for chunk in queue.consume("OldestFirst"):
        assert chunk.trace_context is not None
        chunk.release() if chunk.attempt > 5 else chunk.complete(b"12345")

print(json.dumps([
    {
        "name": span.name,
        "kind": span.kind.name,
        "trace": span.context.trace_id,
        "span": span.context.span_id,
        "parent": span.parent.span_id if span.parent else None,
        "links": [link.context.span_id for link in span.links],
        "attributes": dict(span.attributes),
        "status": span.status.status_code.name,
        "is_ended": span.end_time is not None,
    }
    for span in exporter.get_finished_spans()
]))
"""


def spans(folder: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "queue")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_one_trace_leads_from_the_producer_to_what_the_function_does(runtime_dir: Path) -> None:
    found = spans(runtime_dir)
    by_name: dict[object, list[dict[str, object]]] = {}
    for span in found:
        by_name.setdefault(span["name"], []).append(span)
    [producer] = by_name["producer"]
    first_send, second_send = by_name["send opsq"]
    assert (first_send["kind"], first_send["parent"]) == ("PRODUCER", producer["span"])
    assert first_send["attributes"]["messaging.batch.message_count"] == 2  # type: ignore[index]
    *traced, alone = by_name["process opsq"]
    assert len(traced) == 3  # two chunks, one of them twice
    for process in traced:
        assert (process["kind"], process["trace"]) == ("CONSUMER", producer["trace"])
        assert process["parent"] == first_send["span"]
        assert process["links"] == [first_send["span"]]
    outcomes = [(one["attributes"]["opsq.outcome"], one["status"]) for one in traced]  # type: ignore[index]
    assert sorted(outcomes) == [("completed", "UNSET"), ("completed", "UNSET"), ("failed", "ERROR")]
    assert {one["attributes"]["opsq.attempt"] for one in traced} == {0, 1}  # type: ignore[index]
    assert all(one["attributes"]["opsq.wait_s"] >= 0 for one in traced)  # type: ignore[index]
    assert {one["parent"] for one in by_name["inside"]} == {one["span"] for one in traced}
    assert alone["trace"] == second_send["trace"] != producer["trace"]
    assert alone["attributes"]["opsq.result_bytes"] == 5  # type: ignore[index]
