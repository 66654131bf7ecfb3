"""The public surface is exactly what `opsq.__all__` says, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import opsq

HEAVY = ("typer", "rich", "uvloop", "obstore", "pyspark", "apsw", "asyncio", "msgspec")


def test_every_promised_name_is_there() -> None:
    for name in opsq.__all__:
        assert getattr(opsq, name) is not None
    assert sorted(opsq.__all__) == dir(opsq)


def test_promised_names_are_these() -> None:
    assert set(opsq.__all__) == {
        "AsyncChunk",
        "AsyncConsumer",
        "AsyncQueue",
        "AsyncReservation",
        "AsyncSubmission",
        "Backoff",
        "Bury",
        "Chunk",
        "Consumer",
        "Done",
        "FollowUp",
        "Policy",
        "Producer",
        "Queue",
        "Reservation",
        "ResultStream",
        "Retry",
        "Submission",
        "Tally",
        "__version__",
        "connect",
        "connect_async",
        "errors",
        "outbox",
        "serialisation",
        "strategy",
        "testing",
        "types",
    }


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Qeue"):
        _ = opsq.Qeue  # type: ignore[attr-defined]  # that is the point


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import opsq") & set(HEAVY)


def test_a_blocking_connection_loads_neither_store_nor_event_loop() -> None:
    loaded = loaded_by("import opsq.client.sync.connection")
    assert not loaded & (set(HEAVY) - {"msgspec"})
    assert not {name for name in loaded if name.startswith(("opsq.content", "opsq.queue", "opsq.store", "opsq.daemon"))}


def test_the_blocking_queue_loads_no_event_loop_engine_or_object_store() -> None:
    assert not loaded_by("from opsq import Queue, connect") & (set(HEAVY) - {"msgspec"})
