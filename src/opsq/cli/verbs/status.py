"""The verb status: what the daemon is doing, once or watched, also per value of a metadata key."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import UNSET

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.json_output import print_json
from opsq.cli.output.shard_rows import SHARD_COLUMNS, SHARD_NUMBERS, process_text, shard_rows
from opsq.documents.daemon import StatusDocument
from opsq.documents.progress_meter import ProgressMeter
from opsq.documents.submission_text import value_text
from opsq.errors import Unreachable
from opsq.options import values
from opsq.options.option import duration, option
from opsq.units import counted
from opsq.wire.messages import Counts, DaemonState, ReplicaState, Status

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_CHUNKS = ("waiting", "delayed", "reserved", "completed", "dead", "skipped")
_LAG_S = 2.0
"""A replica that lags for less is up to date: it is written in steps."""


def status(
    caller: Caller,
    watch: bool = option("-w, --watch", "Refresh until Ctrl-C."),
    by: str | None = option("--by KEY", "Also count per value of this metadata key.", values.counted_key),
    interval_s: float = option("--interval D", "How often --watch refreshes.", duration, 1.0),
) -> None:
    """Show what the daemon is doing: chunks by state, consumers, sizes; exits 4 when none answers.

    With --by, a pipe gets one line per value: value, submissions, waiting, delayed, reserved, completed, dead, skipped.
    """
    pause_s = max(interval_s, 0.1)
    try:
        daemon = LastingConnection(caller)
    except Unreachable as error:
        named = "That address" if caller.target in error.message else caller.target
        error.message += f" {named} was chosen by {caller.target_source}."
        raise
    with daemon:
        if not watch:
            _print(caller, _ask(daemon, by), by)
        elif caller.is_rich:
            _watch(caller, daemon, by, pause_s)
        else:
            for state, meter in _states(daemon, by, pause_s):
                _print(caller, state, by, meter)
                sys.stdout.flush()


def _ask(daemon: LastingConnection, by: str | None) -> DaemonState:
    return daemon.call(Status(daemon.next_id(), by, ""), DaemonState)


def _states(daemon: LastingConnection, by: str | None, pause_s: float) -> Iterator[tuple[DaemonState, ProgressMeter]]:
    meter = ProgressMeter()
    while True:
        state = _ask(daemon, by)
        meter.note(state.total, time.monotonic())
        yield state, meter
        time.sleep(pause_s)


def _watch(caller: Caller, daemon: LastingConnection, by: str | None, pause_s: float) -> None:
    from rich.live import Live

    caller.is_drawing = True
    with Live(console=caller.console, auto_refresh=False, screen=True) as live:
        for state, meter in _states(daemon, by, pause_s):
            live.update(_drawing(caller, state, by, meter), refresh=True)


def _print(caller: Caller, state: DaemonState, by: str | None, meter: ProgressMeter | None = None) -> None:
    document = StatusDocument.from_state(state, caller.target, caller.target_source)
    if meter is not None:
        document.rate_per_s, document.left_s = meter.rate_per_s or UNSET, meter.left_s or UNSET
    if caller.is_json:
        print_json(document)
    elif caller.is_rich:
        caller.console.print(_drawing(caller, state, by))
    elif by is not None:
        caller.table((), [[_value(counts), *_numbers(counts)] for counts in state.by])
    else:
        caller.table(
            (),
            [
                *_plain(document, state),
                *(("held_back", sentence) for sentence in caller.held_back("Waiting work", state.held_back)),
            ],
        )
    if by is not None and not state.by:
        caller.remark(f"No submission has the key {by}.")


def _plain(document: StatusDocument, state: DaemonState) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        (name, getattr(document, name))
        for name in (
            "state",
            "takes_new",
            "server",
            "pid",
            "socket",
            "socket_source",
            "connections",
            "parked",
            "unfolded",
            "departed",
            "arriving",
        )
    ]
    rows += [(name, getattr(document.total, name)) for name in ("submissions", *_CHUNKS)]
    rows += [("unmatched", "-" if document.unmatched is None else document.unmatched)]
    rows += [
        ("backlog", document.backlog),
        ("backlog_limit", "-" if document.backlog_limit is None else document.backlog_limit),
    ]
    rows += [("room_waiting", document.room_waiting)]
    rows += [(name, getattr(document, name)) for name in ("file_bytes", "free_bytes", "wal_bytes")]
    rows += [("disk_free_bytes", "-" if document.disk_free_bytes is None else document.disk_free_bytes)]
    rows += [(name, round(getattr(document, name), 3)) for name in ("uptime_s", "oldest_reservation_s", "wal_kept_s")]
    if (replica := document.replica) is not None:
        rows += [("replica", replica.state), ("replica_lag_s", round(replica.lag_s, 3))]
        rows += [("replica_error", replica.error)] if replica.error else []
    if document.rate_per_s:
        rows += [("rate_per_s", round(document.rate_per_s, 3))]
    rows += [
        (
            "arriving_from",
            " ".join((each.source, f"submissions={each.submissions}", f"complete={each.complete}", each.address)),
        )
        for each in document.arriving_from
    ]
    rows += [(f"submissions_{name}", count) for name, count in document.states.items()]
    rows += [("consumer", f"{c.consumer} reserved={c.reserved}") for c in document.consumers]
    rows += [("shard", " ".join(row[:3])) for row in shard_rows(state)]
    return rows


def _drawing(caller: Caller, state: DaemonState, by: str | None, meter: ProgressMeter | None = None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from opsq.daemon.control_connection import full_disk
    from opsq.units import format_roughly, format_span

    head = Text()
    head.append(f"{state.state}", style="bold" if state.state == "running" else "bold magenta")
    head.append(
        f"  {process_text(state)}, up {format_span(state.uptime_s)}, {counted(state.connections_count, 'connection')}\n"
    )
    head.append(f"{caller.target}, chosen by {caller.target_source}\n", style="dim")
    # A write-ahead log larger than the file may contain the free pages: they say nothing about the file then.
    free = (
        f" ({format_roughly(state.free_bytes)} of it free for reuse)" if 0 < state.free_bytes < state.file_bytes else ""
    )
    sizes = f"database {format_roughly(state.file_bytes)}{free}, write-ahead log {format_roughly(state.wal_bytes)}"
    if state.wal_kept_s:
        sizes += f" (kept for {format_span(state.wal_kept_s)} by a program that reads it)"
    left = "" if state.disk_free_bytes is None else f", {format_roughly(state.disk_free_bytes)} left on the disk"
    unfolded = f", {counted(state.unfolded_count, 'outcome')} not folded yet" if state.unfolded_count else ""
    head.append(f"{sizes}{left}{unfolded}", style="dim")
    chunks = caller.new_table(("chunks", *_CHUNKS), right=frozenset(_CHUNKS))
    chunks.add_row("all", *map(str, _numbers(state.total)[1:]))
    parts: list[RenderableType] = [head, chunks]
    if state.shards:
        table = caller.new_table(SHARD_COLUMNS, right=SHARD_NUMBERS)
        for row in shard_rows(state):
            table.add_row(*row)
        parts.append(table)
    if meter is not None and meter.rate_per_s:
        parts.append(Text(f"rate: {', '.join(filter(None, (meter.rate_text(), meter.left_text())))}"))
    if state.backlog_limit is not None or state.room_waiting_count:
        there = StatusDocument.from_state(state, "", "").backlog
        allowed = "" if state.backlog_limit is None else f" of at most {state.backlog_limit}"
        parts.append(
            Text(f"backlog: {there}{allowed}; {counted(state.room_waiting_count, 'submission')} waiting for room")
        )
    if not state.takes_new:
        parts.append(Text("It is being drained, and takes no new submissions: see opsq-drain(1).", style="magenta"))
    if state.departed_count or state.arriving_count:
        moving = f"{counted(state.departed_count, 'submission')} departed, {state.arriving_count} arriving"
        text = f"{moving}: a move is in progress. If it was interrupted, run `opsq drain --to` again at the source."
        parts.append(Text(text, style="magenta"))
    for each in state.arriving_from:
        coming = f"{each.submissions_count} arriving from {each.address}, {each.complete_count} complete"
        parts.append(Text(f"{coming} (source {each.source.hex()}; see opsq-drain(1)).", style="magenta"))
    if state.state == "full":
        parts.append(Text(str(full_disk(state)), style="magenta"))
    if state.replica is not None:
        parts.append(_replica(state.replica))
    parts += [Text(sentence, style="magenta") for sentence in caller.held_back("Waiting work", state.held_back)]
    if state.unmatched_count:
        chunks_text = counted(state.unmatched_count, "waiting chunk")
        text = f"No strategy of a connected consumer takes {chunks_text}: see `opsq explain ID`."
        parts.append(Text(text, style="magenta"))
    if by is not None:
        columns = (by, "submissions", *_CHUNKS)
        table = caller.new_table(columns, right=frozenset(columns[1:]))
        for counts in state.by:
            table.add_row(Text(_value(counts)), *map(str, _numbers(counts)))
        parts.append(table)
    if state.states:
        parts.append(Text("submissions: " + ", ".join(f"{count} {name}" for name, count in state.states.items())))
    if state.consumers:
        table = caller.new_table(
            ("consumer", "reserved", "oldest", "waits for"), right=frozenset({"reserved", "oldest"})
        )
        for consumer in state.consumers:
            oldest = f"{consumer.oldest_reservation_s:.1f}s" if consumer.reserved_count else ""
            waits = Text(consumer.waiting_strategy or "" if consumer.is_connected else "lease")
            table.add_row(Text(consumer.consumer), str(consumer.reserved_count), oldest, waits)
        parts.append(table)
    return Group(*(line for part in parts for line in (part, Text(""))))


def _replica(replica: ReplicaState) -> Text:
    from rich.text import Text

    from opsq.units import format_span

    lag = f"{format_span(replica.lag_s)} behind" if replica.lag_s >= _LAG_S else "up to date"
    what = {"copying": "everything is being copied", "running": lag, "down": f"not written, {lag}"}[replica.state]
    reason = f": {replica.error}" if replica.error else ""
    owner = "" if replica.is_owner else "; the lease ran out: nothing is acknowledged or handed out until it is renewed"
    is_well = replica.is_owner and not replica.error
    return Text(f"replica {replica.url}: {what}{reason}{owner}", style="dim" if is_well else "magenta")


def _value(counts: Counts) -> str:
    return "-" if counts.value is None else value_text(counts.value)


def _numbers(counts: Counts) -> list[int]:
    return [counts.submissions_count] + [getattr(counts, f"{name}_count") for name in _CHUNKS]
