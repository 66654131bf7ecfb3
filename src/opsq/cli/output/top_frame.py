"""Draws one frame of `opsq top`: the sections that fit a screen, from most to least pressing.

It must not ask for anything, nor write to the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opsq.cli.caller import Caller
from opsq.cli.output.shard_rows import process_text
from opsq.cli.output.top_view import FAILURES_KEPT, Sight, TopView
from opsq.daemon.control_connection import full_disk
from opsq.documents.readable import clean
from opsq.documents.submission_text import description_of, ended, host_of, nth, pairs_text, span_of
from opsq.documents.submissions import RunningShape, ranges
from opsq.options.values import now_ms
from opsq.units import counted, format_span
from opsq.wire.messages import ConsumerState, DaemonState, HistoryEvent

KEYS = "q quit  space pause  / text  m metadata  s state  o order"
_HELD_LINES = 3
_LEAST_LINES = 4
"""Of a section that has more to show, its head included."""
_WHERE_CHARACTERS = 32


class Section(NamedTuple):
    """A table: its heads, which of them are numbers, and its rows."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: frozenset[str] = frozenset()


def frame(
    caller: Caller,
    view: TopView,
    sight: Sight,
    *,
    height: int | None = None,
    footer: Text | None = None,
    trouble: str = "",
) -> RenderableType:
    """Everything that is in sight.

    Args:
        height: lines of the screen; None: all there is.
        footer: the last line.
        trouble: why the view is not of now.
    """
    lines = _head(caller, view, trouble)
    blockers = list(_blockers(caller, view.state))
    held = blockers[:_HELD_LINES] if height is not None else blockers
    lines += [_line(f"blocked: {each}", "magenta") for each in held]
    if len(held) < len(blockers):
        lines += [_line(f"and {len(blockers) - len(held)} more: `opsq limits` lists them", "magenta")]
    sections = _sections(caller, view, sight)
    left = None if height is None else max(height - len(lines) - (footer is not None), 0)
    shares = _shares(sections, left)
    lines += [_table(section, count) for section, count in zip(sections, shares, strict=True) if count]
    if footer is not None:
        lines += [Text("")] * ((left or 0) - sum(shares))
        lines.append(footer)
    return Group(*lines)


def footer(sight: Sight, *, is_paused: bool, typed: str | None = None, asks: str = "") -> Text:
    """The line of keys; what is being typed; and what is left out."""
    if typed is not None:
        return _line(f"{asks}: {typed}█", "reverse")
    kept = [sight.state, pairs_text(sight.metadata), f'"{sight.text}"' if sight.text else ""]
    shown = " ".join(filter(None, kept))
    line = _line("PAUSED  " if is_paused else "", "bold magenta")
    return line.append(f"only {shown}  " if shown else "", "bold").append(KEYS, "dim")


def _head(caller: Caller, view: TopView, trouble: str) -> list[RenderableType]:
    state, total, meter = view.state, view.state.total, view.meter
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(state.state, style="bold" if state.state == "running" else "bold magenta")
    head.append(
        f"  {process_text(state)}, up {format_span(state.uptime_s)}, {counted(state.connections_count, 'connection')}"
    )
    head.append(f"  {caller.named_instant(now_ms())}")
    chunks = ", ".join(
        f"{_short(getattr(total, f'{name}_count'))} {name}"
        for name in ("waiting", "delayed", "reserved", "completed", "dead")
    )
    backlog = total.backlog_count
    limit = "" if state.backlog_limit is None else f" of at most {_short(state.backlog_limit)}"
    words = [meter.rate_text() or "no rate yet", meter.left_text(), f"backlog {_short(backlog)}{limit}"]
    words += [f"{_short(count)} {name}" for name, count in state.states.items() if count]
    lines: list[RenderableType] = [head, _line(f"chunks: {chunks}"), _line(f"rate: {', '.join(filter(None, words))}")]
    return [*lines, _line(trouble, "bold magenta")] if trouble else lines


def _short(count: int) -> str:
    """A count as it fits a line with others; `opsq status` has them in full."""
    for power, unit in ((9, "G"), (6, "M")):
        if count >= 10**power:
            return f"{count / 10**power:.1f}{unit}"
    return str(count)


def _blockers(caller: Caller, state: DaemonState) -> Iterator[str]:
    """What keeps work from being handed out, a sentence each."""
    if state.state == "full":
        yield str(full_disk(state))
    yield from caller.held_back("Waiting work", state.held_back)
    if state.total.waiting_count and not state.consumers:
        yield f"{counted(state.total.waiting_count, 'chunk')} waiting, and no consumer is connected"


def _sections(caller: Caller, view: TopView, sight: Sight) -> list[Section]:
    """Those of the state in sight."""
    more = "+" if view.has_more_running else ""
    running = Section(
        (f"running {len(view.running)}{more}", "for", "attempt", "consumer", "about"),
        [
            (
                f"{each.submission_id}/{each.index}",
                span_of(each),
                str(nth(each.attempt)),
                _where(each),
                description_of(each),
            )
            for each in view.running
        ],
        frozenset({"for", "attempt"}),
    )
    failures = Section(
        (
            f"failures {len(view.failures)}{'+' if len(view.failures) == FAILURES_KEPT else ''}",
            "chunk",
            "event",
            "ended",
            "reason",
        ),
        [_failure(caller, each) for each in view.failures],
    )
    consumers = Section(
        (f"consumers {len(view.state.consumers)}", "reserved", "oldest", "waits for"),
        [_consumer(each) for each in view.state.consumers if sight.text.casefold() in each.consumer.casefold()],
        frozenset({"reserved", "oldest"}),
    )
    if sight.state:
        return [running if sight.state == "running" else failures]
    return [running, failures, consumers]


def _where(chunk: RunningShape) -> str:
    host = host_of(chunk)
    text = f"{chunk.consumer} on {host}" if host else chunk.consumer
    return text if len(text) <= _WHERE_CHARACTERS else f"{text[: _WHERE_CHARACTERS - 1]}…"


def _consumer(state: ConsumerState) -> tuple[str, ...]:
    oldest = format_span(state.oldest_reservation_s) if state.reserved_count else ""
    return (
        state.consumer,
        str(state.reserved_count),
        oldest,
        (state.waiting_strategy or "") if state.is_connected else "lease",
    )


def _failure(caller: Caller, event: HistoryEvent) -> tuple[str, ...]:
    chunks = ranges(event.block * 64, event.mask)
    reason = clean(" ".join(event.reason.split()))
    return (
        caller.instant(event.at),
        f"{event.submission_id}/{chunks}",
        event.event,
        ended(event.exit_status, event.signal),
        reason,
    )


def _shares(sections: Sequence[Section], left: int | None) -> list[int]:
    """How many lines each section gets, its head included: a few for each, and the rest to the first that want it."""
    wanted = [1 + len(section.rows) for section in sections]
    if left is None:
        return wanted
    shares = []
    for want in wanted:
        shares.append(min(want, _LEAST_LINES, left))
        left -= shares[-1]
    for number, want in enumerate(wanted):
        more = min(want - shares[number], left)
        shares[number] += more
        left -= more
    return shares


def _table(section: Section, lines_count: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for head in section.heads:
        is_last = head == section.heads[-1]  # which gives way to the others, and is cut
        table.add_column(head, justify="right" if head in section.numbers else "left", no_wrap=not is_last)
    for row in section.rows[: lines_count - 1]:
        table.add_row(*map(_line, row))
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
