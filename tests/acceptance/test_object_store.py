"""A daemon whose store is an object service.

The main job as with files, byte for byte, and where its contents are read ahead.
"""

from __future__ import annotations

import pytest

from acceptance.conftest import Opsq
from opsq.content.store_kinds import open_store

LINES = b"".join(b"%d\n" % number for number in range(300_000))
"""Longer than the buffers on its way."""


@pytest.fixture
def served(opsq: Opsq, service_environment: dict[str, str]) -> Opsq:
    """A daemon that keeps contents and results in the service."""
    opsq.environ |= service_environment
    opsq.ok("start")
    return opsq


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_results_come_back_byte_for_byte(served: Opsq, source: str):
    words = ["-"] if source == "stdin" else [served.file("input", LINES)]
    submission = served.ok("submit", "--lines", "5000", *words, stdin=LINES if source == "stdin" else None).text
    served.ok("consume", "--until-empty", "--jobs", "3", "--", "cat")
    assert served.ok("results", submission).out == LINES
    assert not list((served.state_dir / "content").glob("*/part-*"))


def test_many_small_chunks_are_read_ahead_and_each_is_its_own(served: Opsq):
    submission = served.submit_lines(400)
    large = served.ok("submit", "-", "--lines", "20000", stdin=LINES).text
    served.ok("consume", "--until-empty", "--jobs", "4", "--", "sed", "s/$/ done/")
    assert served.ok("results", submission).out == b"".join(b"%d done\n" % number for number in range(400))
    assert served.ok("results", large).out == LINES.replace(b"\n", b" done\n")


def test_run_and_each_record_and_servers(served: Opsq):
    served.file("input", LINES)
    assert served.ok("run", "--lines", "50000", "input", "--", "tr", "1", "2").out == LINES.replace(b"1", b"2")
    assert served.ok("run", "--each", "--lines", "50", "-", "--", "echo", "got", stdin=LINES[:890]).lines == [
        f"got {number}" for number in range(250)
    ]


def test_content_that_is_gone_fails_its_chunk_and_says_so(
    served: Opsq, service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    submission = served.ok(
        "submit", "-", "--lines", "100000", "--max-attempts", "1", "--on-dead", "keep", stdin=LINES
    ).text
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(service_environment["OPSQ_STORE"])
    [folder] = [folder for folder in store.folders() if "part-0" in store.objects(folder)]
    store.delete_object(f"{folder}/part-0")
    ran = served("consume", "--until-empty", "--", "cat")
    assert ran.status != 0
    assert f"{folder}/part-0" in ran.err
    assert served.ok("show", submission, "--json").json["dead"] == 3
