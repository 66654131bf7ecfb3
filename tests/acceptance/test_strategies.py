"""Strategies and rules as scripts and people meet them; the examples of opsq-strategies(7) print what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from acceptance.conftest import Opsq

PAGE = Path(__file__).parents[2] / "man" / "opsq-strategies.7"


def examples() -> list[str]:
    """The texts of the examples of the page, as a reader sees them."""
    text = PAGE.read_text(encoding="utf-8")
    for escape, character in (("\\-", "-"), ("\\&...", "…"), ("\\(<=", "≤"), ("\\e", "\\")):
        text = text.replace(escape, character)
    return re.findall(r"(?ms)^\.EX\n(.*?)^\.EE", text)


def explained() -> Iterator[tuple[str, list[str]]]:
    """The strategies that the page explains, each with the lines that it shows."""
    for example in examples():
        command, *lines = example.splitlines()
        if match := re.fullmatch(r"\$ opsq explain '?([^']*)'?", command):
            yield match[1], lines


EXPLAINED = dict(explained())


@pytest.mark.parametrize("strategy", EXPLAINED)
def test_explain_prints_what_the_page_shows(queue: Opsq, strategy: str) -> None:
    """All lines of the page come, in that order.

    It leaves out statements, plans and what each page need not say again.
    """
    printed = iter(queue.ok("explain", strategy).lines)
    for line in EXPLAINED[strategy]:
        assert line in printed, line


def test_every_strategy_of_the_page_is_one(queue: Opsq) -> None:
    found = re.findall(r"--strategy (?:'([^']*)'|(\w+))", "".join(examples()))
    strategies = {quoted or bare for quoted, bare in found} - {"interactive"}
    assert len(strategies) >= len(EXPLAINED)
    for strategy in strategies:
        assert queue.ok("explain", strategy).lines[0] == strategy


def tenants(queue: Opsq, strategy: str, count: int) -> list[str]:
    """The tenants of so many chunks, reserved one by one."""
    handles = [queue.ok("reserve", "--strategy", strategy).text for _ in range(count)]
    tenant_of = {line.split("\t")[0]: line.split("=")[1].partition("\t")[0] for line in queue.ok("list").lines}
    return [tenant_of[handle.partition("/")[0]] for handle in handles]


def test_second_users_only_chunk_comes_with_the_first_two(queue: Opsq) -> None:
    """A has queued a hundred, then B one."""
    queue.submit_lines(100, "-m", "user=a")
    queue.submit_lines(1, "-m", "user=b")
    assert "b" in tenants(queue, "PreferDistinct(user, 1, OldestFirst)", 2)


def test_urgent_submission_starts_with_the_next_reservation_and_cannot_starve_the_rest(queue: Opsq) -> None:
    """A large import waits.

    Urgent work goes before it, and a consumer that asks the other way round serves the import all the same.
    """
    queue.submit_lines(20_000, "-m", "tenant=bulk")
    queue.submit_lines(5, "-m", "tenant=urgent", "--priority", "9")
    assert tenants(queue, "CustomPriority", 2) == ["urgent"] * 2
    assert tenants(queue, "OldestFirst", 1) == ["bulk"]
    assert set(tenants(queue, "Fair(tenant, CustomPriority)", 2)) == {"bulk", "urgent"}


def test_a_reserved_chunk_stays_with_its_consumer_whatever_comes(queue: Opsq) -> None:
    """Neither a priority nor a pause recalls anything."""
    queue.submit_lines(1, "-m", "tenant=a")
    handle = queue.reserve()
    queue.submit_lines(1, "--priority", "9")
    queue.ok("pause", "--all")
    queue.ok("complete", handle)
    assert queue("reserve").status == 3


def test_strictly_ordered_submission_gives_its_next_chunk_when_the_last_is_done(queue: Opsq) -> None:
    strategy = "MaxSimultaneous(submission, 1, OldestFirst)"
    submission = queue.submit_lines(3, "--backoff", "1h")
    first = queue.ok("reserve", "-n", "5", "--strategy", strategy).text
    assert first.startswith(f"{submission}/0@")
    assert queue("reserve", "--strategy", strategy).status == 3
    queue.ok("complete", first)
    second = queue.ok("reserve", "--strategy", strategy).text
    assert second.startswith(f"{submission}/1@")
    queue.ok("fail", second)
    assert queue("reserve", "--strategy", strategy).status == 3


def test_parked_reserve_is_woken_when_its_pause_ends(queue: Opsq) -> None:
    assert queue("pause", "tenant=a").status == 0  # what it is meant for is yet to come
    queue.submit_lines(1, "-m", "tenant=a")
    with queue.running("reserve", "--wait", "60") as waiting:
        queue.wait_until_seen()
        queue.ok("resume", "tenant=a")
        out, _ = waiting.communicate(timeout=180)
    assert waiting.returncode == 0
    assert b"/0@" in out


def test_named_strategies_come_from_the_settings(opsq: Opsq) -> None:
    """One that cannot be parsed ends the start, and says which it is and where it stands."""
    config = opsq.folder / "opsq" / "opsq.toml"
    config.parent.mkdir()
    environ = {"XDG_CONFIG_HOME": str(opsq.folder)}
    config.write_text('[strategies]\nfast = "SelectOnly(kind=preview"\n')
    ran = opsq("start", environ=environ)
    assert ran.status == 2
    assert "strategy named fast" in ran.err
    assert "column" in ran.err
    config.write_text('[strategies]\nfast = "SelectOnly(kind=preview)"\n')
    assert opsq("start", environ=environ).status == 0
    assert opsq.ok("explain", "fast").lines[0] == "SelectOnly(kind=preview)"
    ran = opsq("reserve", "--strategy", "fats")
    assert ran.status == 2
    assert "did you mean fast?" in ran.err


def drawn(queue: Opsq, columns: int, *words: str) -> list[str]:
    """What a terminal of so many columns shows of a command line."""
    ran = queue.on_terminal(*words, columns=columns)
    assert ran.status == 0
    screen = pyte.Screen(columns + 40, 300)
    pyte.ByteStream(screen).feed(ran.out)
    return [line.rstrip() for line in screen.display]


@pytest.mark.parametrize("columns", [80, 200])
def test_explanations_and_rules_fit_the_terminal(queue: Opsq, columns: int) -> None:
    submission = queue.submit_lines(3, "-m", "tenant=a", "-m", "kind=preview")
    queue.ok("pause", "tenant=a", "--operator")
    queue.ok("limit", "tenant", "--concurrency", "5", "--rate", "100/m", "--burst", "10")
    strategy = "OrElse(SelectOnly(kind=preview), PreferDistinct(tenant, 50%, Fair(tenant)))"
    for words in (("explain", strategy, "--analyze"), ("explain", submission), ("limits",)):
        lines = drawn(queue, columns, *words)
        assert max(len(line) for line in lines) <= columns, words
    lines = drawn(queue, columns, "explain", strategy, "--analyze")
    assert any("✓" in line for line in lines)
    assert not any("✗" in line for line in lines)
    assert any("pause of tenant=a" in line for line in lines)
    assert drawn(queue, columns, "explain", submission)[0].startswith("● paused")
