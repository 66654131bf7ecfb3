"""opsq pause, resume, limit, limits, weight against a real daemon.

What they hold back, who is told of them, that they survive.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import connected, end, running
from opsq.__main__ import run
from opsq.daemon import lifecycle
from opsq.errors import NotPermitted, UsageError
from opsq.options.rule_options import rate
from opsq.settings import Settings
from opsq.units import format_rate
from opsq.wire import messages as m

Say = Callable[..., list[str]]


@pytest.fixture
def daemon(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A daemon with a submission of each of two tenants."""
    monkeypatch.setenv("OPSQ_STATE_DIR", str(runtime_dir / "s"))
    with running(runtime_dir / "s") as settings:
        with connected(settings) as client:
            new = [
                m.NewSubmission(bytes([i] * 16), 8, metadata={"tenant": tenant})
                for i, tenant in enumerate(("acme", "beta"))
            ]
            assert isinstance(client.ask(m.Submit(2, new)), m.Submitted)
        yield settings


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


def taken(say: Say, count: int) -> list[str]:
    """The tenants of what a reserve gets, which is given back."""
    tenant_of = {line.split("\t")[0]: line.split("=")[1].partition("\t")[0] for line in say("list")}
    handles = say("reserve", "-n", str(count), "--strategy", "OldestFirst")
    for handle in handles:
        say("release", handle)
    return [tenant_of[handle.partition("/")[0]] for handle in handles]


def test_paused_pair_is_not_handed_out_until_resumed(daemon: Settings, say: Say) -> None:
    assert say("pause", "tenant=acme") == []
    assert set(taken(say, 10)) == {"beta"}
    assert document(say, "pause", "tenant=acme") == {"count": 0}
    assert document(say, "resume", "tenant=acme") == {"count": 1}
    assert run(["resume", "tenant=acme"]) == 3
    assert set(taken(say, 10)) == {"acme", "beta"}


def test_operators_pause_is_not_ended_by_a_user(daemon: Settings, say: Say, capfd: pytest.CaptureFixture[str]) -> None:
    say("pause", "--operator", "--all")
    assert run(["reserve"]) == 3
    capfd.readouterr()
    assert run(["resume", "--all"]) == 7
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f"An operator ({user}@" in capfd.readouterr().err
    say("resume", "--all", "--operator")
    assert len(taken(say, 1)) == 1


def test_rules_survive_the_daemon_and_tell_who_set_them(daemon: Settings, say: Say) -> None:
    say("pause", "tenant=later", "kind=7", "--quiet")  # nothing has them yet
    say("limit", "tenant", "--concurrency", "2", "--rate", "100/m", "--burst", "4")
    say("limit", "tenant=acme", "-c", "1")
    say("weight", "tenant=acme", "3")
    before = document(say, "limits")
    end(daemon)
    lifecycle.start(daemon)
    after = document(say, "limits")
    assert after == before
    (pause,) = after["pauses"]
    assert (pause["metadata"], pause["by_operator"]) == ({"kind": 7, "tenant": "later"}, False)
    assert pause["by"].startswith(pwd.getpwuid(os.getuid()).pw_name + "@")
    assert [(limit["value"], limit["concurrency"], limit["burst"]) for limit in after["limits"]] == [
        (None, 2, 4),
        ("acme", 1, None),
    ]
    assert after["limits"][0]["rate_per_s"] == pytest.approx(100 / 60)
    assert after["weights"] == [{"key": "tenant", "value": "acme", "weight": 3.0}]


def test_limit_holds_and_shows_how_much_is_reserved(daemon: Settings, say: Say) -> None:
    say("limit", "tenant", "-c", "2")
    assert len(say("reserve", "-n", "100", "--strategy", "OldestFirst")) == 4
    say("limit", "tenant=acme", "-c", "3")
    assert run(["reserve"]) == 3
    rows = [line.split("\t") for line in say("limits")]
    assert [row[:4] for row in rows] == [
        ["limit", "each tenant", "2 at once", "2 (acme)"],
        ["limit", "tenant=acme", "3 at once", "2"],
    ]
    say("limit", "tenant", "--lift")
    assert len(say("reserve", "-n", "100")) == 7


def test_rate_is_listed_as_it_was_given_after_a_restart_too(daemon: Settings, say: Say) -> None:
    say("limit", "tenant", "-r", "5/15m")
    say("limit", "tenant=acme", "-r", "100/m", "--burst", "7")
    for _ in range(2):
        assert [line.split("\t")[2] for line in say("limits")] == ["5/15m", "100/m burst 7"]
        assert [limit["rate_span_s"] for limit in document(say, "limits")["limits"]] == [900.0, 60.0]
        say("restart")


def test_rate_lets_no_more_start_than_its_burst_at_once(daemon: Settings, say: Say) -> None:
    say("limit", "tenant", "--rate", "1/h", "--burst", "3")
    assert len(say("reserve", "-n", "100")) == 6
    (explained,) = document(say, "explain", "Random", "--analyze")["arms"]
    assert explained["analysis"]["set_aside"] == {"rate of each tenant ≤ 1/h": 2}


def test_limits_count_for_each_value_alone(daemon: Settings, say: Say) -> None:
    say("limit", "tenant=acme", "--rate", "1/h")
    assert len(say("reserve", "-n", "100")) == 1 + 8


def test_weight_decides_the_shares_of_fair_and_comes_with_a_submission_too(
    daemon: Settings, say: Say, runtime_dir: Path
) -> None:
    (runtime_dir / "in").write_text("a\n")
    say("submit", str(runtime_dir / "in"), "-m", "tenant=beta", "--weight", "tenant=3")
    assert document(say, "limits")["weights"] == [{"key": "tenant", "value": "beta", "weight": 3.0}]
    offers = document(say, "explain", "Fair(tenant)", "--analyze")["offers"]
    assert [offer["metadata"]["tenant"] for offer in offers[:8]].count("beta") == 6
    say("weight", "tenant=beta", "1")
    assert document(say, "limits")["weights"] == []


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["pause"], 2),
        (["pause", "tenant=a", "--all"], 2),
        (["pause", "tenant"], 2),
        (["pause", "tenant=a", "tenant=b"], 2),
        (["resume", "a b=c"], 2),
        (["limit", "tenant"], 2),
        (["limit", "tenant", "--burst", "3"], 2),
        (["limit", "tenant", "--lift", "-c", "1"], 2),
        (["limit", "tenant", "-c", "0"], 2),
        (["limit", "tenant", "--rate", "fast"], 2),
        (["limit", "submission=5", "-c", "1"], 2),
        (["limit", "tenant", "--lift"], 3),
        (["weight", "tenant", "3"], 2),
        (["weight", "tenant=a", "0"], 2),
        (["weight", "tenant=a", "x"], 2),
    ],
)
def test_what_makes_no_rule_is_refused_and_changes_nothing(
    daemon: Settings, say: Say, capfd: pytest.CaptureFixture[str], words: list[str], status: int
) -> None:
    assert run(words) == status
    assert capfd.readouterr().err.startswith("opsq: ")
    assert document(say, "limits") == {"pauses": [], "limits": [], "weights": []}


@pytest.mark.parametrize(
    ("text", "rate_per_s", "shown"),
    [
        ("10", 10, "10/s"),
        ("10/s", 10, "10/s"),
        ("0.5/s", 0.5, "30/m"),
        ("100/m", 100 / 60, "100/m"),
        ("7/d", 7 / 86400, "7/d"),
        ("5/15m", 5 / 900, "5/15m"),
        ("2/1h30m", 2 / 5400, "2/90m"),
        ("1/0.5s", 2, "1/0.5s"),
    ],
)
def test_rates_are_read_and_shown_as_people_wrote_them(text: str, rate_per_s: float, shown: str) -> None:
    found, span_s = rate("--rate", text)
    assert found == pytest.approx(rate_per_s)
    assert format_rate(found, span_s) == shown


@pytest.mark.parametrize(
    ("rate_per_s", "shown"), [(10, "10/s"), (0.5, "30/m"), (5 / 900, "20/h"), (2 / 5400, "1.33333/h")]
)
def test_rate_of_which_nobody_knows_how_it_was_given_is_shown_in_a_unit_that_suits_it(
    rate_per_s: float, shown: str
) -> None:
    assert format_rate(rate_per_s) == shown


@pytest.mark.parametrize("text", ["", "/s", "x/s", "-1/s", "0", "nan", "inf", "1/0s", "1/parsec", "1/"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rate"):
        rate("--rate", text)


# --- the same from Python ---------------------------------------------------------------------------------------------


def test_program_pauses_limits_weighs_and_asks_why(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit([b"1", b"2"], metadata={"tenant": "acme"}, weights={"tenant": 3})
        assert queue.pause({"tenant": "acme"}, by_operator=True)
        assert not queue.pause({"tenant": "acme"})
        assert queue.explain_work(submission.id).verdict == "paused"
        with pytest.raises(NotPermitted):
            queue.resume({"tenant": "acme"})
        assert queue.resume({"tenant": "acme"}, by_operator=True)
        queue.limit("tenant", concurrency=1)
        queue.limit("tenant", "acme", rate_per_s=5, burst=7)
        queue.unlimit("tenant")
        queue.weight("tenant", 7, 2)
        rules = queue.rules()
        assert [(limit.key, limit.value, limit.burst) for limit in rules.limits] == [("tenant", "acme", 7)]
        assert {(weight.value, weight.weight) for weight in rules.weights} == {("acme", 3), (7, 2)}
        assert [(offer.submission_id, offer.index) for offer in queue.explain("Random", analyze=True).offers] == [
            (submission.id, 0),
            (submission.id, 1),
        ]


def test_asyncio_program_does_the_same(daemon: Settings) -> None:
    async def rule() -> None:
        async with opsq.connect_async(daemon.socket) as queue:
            submission = await queue.submit([b"1"], metadata={"tenant": "gamma"}, weights={"tenant": 2})
            assert await queue.pause({"tenant": "gamma"})
            assert (await queue.explain_work(submission.id, 0)).verdict == "paused"
            assert await queue.resume({"tenant": "gamma"})
            await queue.limit("tenant", "gamma", concurrency=1)
            await queue.unlimit("tenant", "gamma")
            await queue.weight("tenant", "acme", 4)
            rules = await queue.rules()
            assert (rules.pauses, rules.limits, len(rules.weights)) == ([], [], 2)
            assert len((await queue.explain("OldestFirst", analyze=True)).offers) == 10

    asyncio.run(rule())
