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


def test_inputs_are_known_wherever_they_are_kept(served: Opsq):
    """Of many files they are an object in the service; where chunks of one file end is another."""
    names = [f"{'long name ' * 9}{number}.txt" for number in range(300)]
    for number, name in enumerate(names):
        served.file(name, b"%d\n" % number)
    served.file("cut", b"".join(b"%04d\n" % number for number in range(5000)))
    rules = ["--max-attempts", "1", "--on-dead", "keep"]
    many = served.ok("submit", "--per-file", *rules, *names).text
    cut = served.ok("submit", "--lines", "2", *rules, "cut").text
    tell = 'grep -qx -e 277 -e 4001 && exit 3; echo "$OPSQ_INPUT $OPSQ_OFFSET"'
    ran = served("consume", "--until-empty", "-j", "4", "--", "sh", "-c", tell)
    assert f"Chunk {many}/277 ({names[277]}, bytes 0-3) failed (attempt 1 of 1, dead): exit status 3" in ran.err
    assert f"Chunk {cut}/2000 (cut, bytes 20000-20009) failed (attempt 1 of 1, dead): exit status 3" in ran.err
    assert served.ok("results", many, "--skip-dead").lines == [f"{name} 0" for name in names if name != names[277]]
    assert served.ok("results", cut, "--skip-dead").lines == [f"cut {10 * n}" for n in range(2500) if n != 2000]
    dead = {each["submission_id"]: each for each in served.ok("dead", "list", "--json").json["chunks"]}
    assert [(dead[n]["input"], dead[n]["offset"], dead[n]["length"]) for n in (many, cut)] == [
        (names[277], 0, 4),
        ("cut", 20_000, 10),
    ]
    assert f"Chunk {cut}/2000 (cut, bytes 20000-20009) has no result" in served("results", cut).err
    assert served.ok("show", many, "--json").json["inputs"] == names[:100]
    served.ok("dead", "requeue", cut)
    (reserved,) = served.ok("reserve", "--json").json["chunks"]
    assert (reserved["input"], reserved["offset"], reserved["length"]) == ("cut", 20_000, 10)


def test_copy_of_a_shown_submission_has_its_inputs(served: Opsq):
    served.file("t.csv", b"h\n" + LINES)
    first = served.ok("submit", "--csv-header", "--lines", "1000", "t.csv").text
    served.file("shown.json", served.ok("show", first, "--json").out)
    again = served.ok("submit", "--from-json", "shown.json").text
    old, new = (served.ok("read", f"{number}/200", "--json").json for number in (first, again))
    assert new | {"submission_id": first} == old
    assert (new["input"], new["text"][:9]) == ("t.csv", "h\n200000\n")
