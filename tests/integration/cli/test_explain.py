"""opsq explain against a real daemon, and against the file of one that has stopped.

Plain lines, JSON, and what a terminal shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Client, connected, end, running
from opsq.__main__ import run
from opsq.settings import Settings
from opsq.wire import messages as m

Say = Callable[..., list[str]]
COMPOSED = "OrElse(SelectOnly(kind=preview), PreferDistinct(tenant, 50%, Fair(tenant, CustomPriority)))"
NODES = [
    "Random",
    "OldestFirst",
    "NewestFirst",
    "CustomPriority",
    "Fair(tenant, NewestFirst)",
    "SelectOnly(kind=preview, SelectOnly(tenant=acme))",
    "PreferDistinct(tenant, 1)",
    "MaxSimultaneous(submission, 1, OldestFirst)",
    "SelectOnly(kind=preview, Fair(tenant))",
    COMPOSED,
]


@pytest.fixture
def daemon(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A daemon that has two named strategies, with three submissions of two tenants."""
    folder = runtime_dir / "s"
    config = runtime_dir / "c" / "opsq"
    config.mkdir(parents=True)
    (config / "opsq.toml").write_text('[strategies]\ninteractive = "SelectOnly(kind=preview, NewestFirst)"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(runtime_dir / "c"))
    monkeypatch.setenv("OPSQ_STATE_DIR", str(folder))
    with running(folder) as settings, connected(settings) as client:
        new = [m.NewSubmission(bytes([i] * 16), 2, metadata=metadata) for i, metadata in enumerate(SUBMITTED)]
        assert isinstance(client.ask(m.Submit(2, new)), m.Submitted)
        yield settings


SUBMITTED: list[dict[str, int | str]] = [{"tenant": "acme"}, {"tenant": "acme", "kind": "preview"}, {"tenant": 7}]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Runs a command line in this process, which must succeed; its lines on stdout."""

    def lines(*words: str) -> list[str]:
        capfd.readouterr()
        status = run(words)
        out, err = capfd.readouterr()
        assert (status, err) == (0, "")
        return out.splitlines()

    return lines


def document(say: Say, *words: str) -> Any:
    (line,) = say(*words, "--json")
    return json.loads(line)


def ids(client: Client) -> list[int]:
    """The submissions, the oldest first."""
    reply = client.ask(m.List(3))
    assert isinstance(reply, m.Listed)
    return [state.submission_id for state in reversed(reply.submissions)]


# --- strategies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", NODES)
def test_every_step_of_every_plan_streams(daemon: Settings, say: Say, strategy: str) -> None:
    """The plan is printed, each step with what it means; nothing is scanned or sorted."""
    explained = document(say, "explain", strategy)
    assert explained["strategy"] == strategy
    arms = explained["arms"] + [inner for arm in explained["arms"] for inner in arm["inner"]]
    steps = [step for arm in arms for statement in arm["statements"] for step in statement["plan"]]
    assert steps
    text = "\n".join(say("explain", strategy))
    for step in steps:
        assert re.match("SEARCH|CORRELATED SCALAR SUBQUERY", step["detail"])
        assert step["verdict"]
        assert f"{step['detail']}  -- {step['verdict']}" in text


def test_analysis_shows_which_arm_chooses_a_chunk(daemon: Settings, say: Say) -> None:
    explained = document(say, "explain", COMPOSED, "--analyze")
    with connected(daemon) as client:
        old, preview, other = ids(client)
    found = [(offer["submission_id"], offer["index"], offer["arm"]) for offer in explained["offers"]]
    assert sorted(found[:2]) == [(str(preview), 0, 1), (str(preview), 1, 1)]
    assert {entry[2] for entry in found[2:]} == {2, 3}
    assert explained["offers"][0]["metadata"] == {"tenant": "acme", "kind": "preview"}
    assert explained["arms"][0]["analysis"]["offered"] == 2
    assert all(
        arm["analysis"][f"{part}_us"] >= 0
        for arm in explained["arms"]
        for part in ("walk", "look_ups", "gates", "order", "supply")
    )
    assert {str(old), str(other)} <= {entry[0] for entry in found}


def test_analysis_of_an_arm_without_work_says_so_once(daemon: Settings, say: Say) -> None:
    lines = say("explain", "SelectOnly(kind=nothing)", "--analyze")
    assert "  dry run: gives nothing: none of it may be handed out now" in lines


def test_analysis_changes_nothing(daemon: Settings, say: Say) -> None:
    """What was offered is what a reserve gets, and was not reserved before."""
    offers = document(say, "explain", "Fair(tenant)", "--analyze")["offers"]
    assert document(say, "explain", "Fair(tenant)", "--analyze")["offers"] == offers
    (chunk,) = document(say, "reserve", "--strategy", "Fair(tenant)")["chunks"]
    assert (chunk["submission_id"], chunk["index"]) == (offers[0]["submission_id"], offers[0]["index"])


def test_tree_of_a_strategy_comes_first_with_the_rule_of_each_node(daemon: Settings, say: Say) -> None:
    lines = say("explain", "MaxSimultaneous(tenant, 5, Fair(tenant))")
    assert lines[:4] == [
        "MaxSimultaneous(tenant, 5, Fair(tenant))",
        "  MaxSimultaneous(tenant, 5) -- at most 5 chunks of each tenant reserved at once:",
        "    Fair(tenant) -- each tenant has its share by weight; inside one:",
        "      OldestFirst -- all of the oldest submission, then of the next",
    ]


def test_starvation_and_its_cure_are_said(daemon: Settings, say: Say) -> None:
    for strategy in ("NewestFirst", "CustomPriority"):
        (note,) = [line for line in say("explain", strategy) if line.startswith(f"note: {strategy}")]
        assert "starve" in note
        assert "Fair or OrElse" in note
    text = "\n".join(say("explain", "MaxSimultaneous(tenant, 50%)"))
    assert "50% is of the consumers connected now, rounded up, at least 1" in text
    assert "submissions without tenant are never blocked" in text


def test_named_strategy_is_used_by_name_and_a_near_miss_is_told(
    daemon: Settings, say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    assert say("explain", "interactive")[0] == "SelectOnly(kind=preview, NewestFirst)"
    (chunk,) = document(say, "reserve", "--strategy", "interactive")["chunks"]
    with connected(daemon) as client:
        assert chunk["submission_id"] == str(ids(client)[1])
    assert run(["explain", "interactiv"]) == 2
    assert "did you mean interactive?" in capfd.readouterr().err
    rows = document(say, "config")["settings"]
    assert [row["value"] for row in rows if row["name"] == "strategies.interactive"] == [
        "SelectOnly(kind=preview, NewestFirst)"
    ]


# --- work -------------------------------------------------------------------------------------------------------------


def test_handle_of_work_that_nobody_takes_says_why(daemon: Settings, say: Say) -> None:
    with connected(daemon, "reader") as client:
        old, preview, _ = ids(client)
        client.send(m.Reserve(5, 5, "SelectOnly(kind=preview)"))
        assert isinstance(client.receive(), m.Reserved)
        explained = document(say, "explain", f"{old}/1")
        assert (explained["submission_id"], explained["index"], explained["verdict"]) == (str(old), 1, "unmatched")
        assert "1 × SelectOnly(kind=preview): never takes it." in explained["reasons"]
        assert document(say, "status")["unmatched"] == 4
        lines = say("explain", f"{preview}/0")
        assert lines[0].startswith(f"reserved: Chunk {preview}/0 is reserved")
        assert any(line.startswith("  Reserved by reader-") for line in lines)


def test_handle_of_a_shell_reservation_is_explained(daemon: Settings, say: Say) -> None:
    (handle,) = say("reserve", "--strategy", "OldestFirst")
    lines = say("explain", handle)
    assert lines[0].startswith("reserved: Chunk ")
    assert "Reserved by a lease of cli-" in lines[1]


@pytest.mark.parametrize(
    ("text", "status"), [("1", 3), ("1/0", 3), ("1/x", 2), ("1/0@zz", 2), ("99999999999999999999", 3)]
)
def test_what_is_no_work_of_ours_is_refused_in_words(
    daemon: Settings, capfd: pytest.CaptureFixture[str], text: str, status: int
) -> None:
    assert run(["explain", text]) == status
    assert capfd.readouterr().err.startswith("opsq: ")


def test_analyze_of_work_is_exit_2(daemon: Settings) -> None:
    assert run(["explain", "1", "--analyze"]) == 2


# --- a stopped daemon -------------------------------------------------------------------------------------------------


def test_stopped_file_is_explained_as_it_was_left(daemon: Settings, say: Say) -> None:
    """Also one that was killed, with completions that were not folded."""
    (handle,) = say("reserve", "--strategy", "OldestFirst")
    say("complete", handle)
    end(daemon)
    old, index = handle.partition("@")[0].split("/")
    explained = document(say, "explain", "OldestFirst", "--analyze")
    assert explained["is_running"] is False
    assert (explained["offers"][0]["submission_id"], explained["offers"][0]["index"]) == (old, int(index) + 1)
    work = document(say, "explain", old)
    assert (work["verdict"], work["is_running"]) == ("stopped", False)
    assert "1 completed" in work["reasons"][-1]
    assert document(say, "explain", f"{old}/{index}")["verdict"] == "completed"
    assert say("explain", "interactive")[0] == "SelectOnly(kind=preview, NewestFirst)"


def test_without_a_file_the_daemon_is_unreachable(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSQ_STATE_DIR", str(runtime_dir / "none"))
    assert run(["explain", "Random"]) == 4
