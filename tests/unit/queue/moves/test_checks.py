"""What comes from a broken or hostile source is refused by name and field, and the target's file stays sound."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from opsq.errors import UsageError
from opsq.ids import EPOCH_MS
from opsq.store import transfer
from opsq.store.backlog import AttemptRow, DeadRow
from opsq.store.transfer import Header, Slice, Wait
from opsq.wire import messages as m
from unit.queue.moves.pair import SHARD, Pair, StepMover, states

replace = msgspec.structs.replace


class Sent:
    """A submission of which some of everything is there, held for a move: its header and its only slice."""

    def __init__(self, pair: Pair, **options: Any) -> None:
        rig = pair.source
        self.pair = pair
        self.submission = rig.submit(
            200, keep_on_dead=True, max_attempts=9, metadata={"tenant": "a"}, weights={"tenant": 2.0}, **options
        )
        peer = rig.connect("worker")
        first, second = rig.reserve(peer, 128)
        rig.complete(peer, first.held([0, 1]), results=msgspec.Raw(msgspec.msgpack.encode([b"a", b""])))
        rig.fail(peer, first.held([2, 3]), is_final=True, reason="broken")
        rig.fail(peer, first.held([4]), delay_s=1000.0)
        rig.only(peer, m.Drop(next(rig.ids), self.submission, [3]), m.Changed)
        rig.complete(peer, second.held())
        rig.disconnect(peer)
        self.mover: StepMover = pair.mover()
        list(self.mover.recover())
        self.held = self.mover.hold()
        part = self.mover.export(self.held)
        self.header = transfer.decode_header(part.content)
        rows = self.mover.export(self.held, part.after)
        assert rows.after is None
        self.slice = transfer.decode_slice(rows.content)

    def stage(self, header: Header, found: Slice, times: int = 1) -> None:
        """Send both, the slice as often as is wanted."""
        mover, held = self.mover, self.held
        mover.stage(held, m.ExportedSlice(0, transfer.encode(header), transfer.START))
        for number in range(1, times + 1):
            after = None if number == times else transfer.START
            mover.stage(held, m.ExportedSlice(0, transfer.encode(found), after), number)


def of_row(**fields: Any) -> Callable[[Header], Header]:
    return lambda header: replace(header, row=header.row._replace(**fields))


def of_about(**fields: Any) -> Callable[[Header], Header]:
    return lambda header: replace(header, about=header.about._replace(**fields))


def of_header(**fields: Any) -> Callable[[Header], Header]:
    return lambda header: replace(header, **fields)


def of_slice(**fields: Any) -> Callable[[Slice], Slice]:
    return lambda found: replace(found, **fields)


DAYS_MS = 86_400_000
FAR_ID = (1_800_000_000_000 + 2 * DAYS_MS - EPOCH_MS) << 22
WAIT = Wait(5, "", 0, "completed", "cancel", "completed")
EVENT_FIELDS = {"run_s": -1.0, "wait_s": float("nan"), "attempt": -1, "block": 4, "reservation_id": 1 << 63}
HEADERS = {
    "state": (of_row(state="removed"), "state"),
    "unknown state": (of_row(state="odd"), "state"),
    "negative counter": (of_row(chunks_dead=-1), "chunks_dead"),
    "counters beyond the total": (of_row(chunks_completed=10**6), "chunks_total"),
    "more dropped than skipped": (of_row(chunks_dropped=9), "chunks_dropped"),
    "skipped while open": (of_row(chunks_skipped=20), "chunks_skipped"),
    "too many chunks": (of_row(chunks_total=1 << 62), "chunks_total"),
    "integer that no table takes": (of_row(priority=1 << 63), "priority"),
    "frontier": (of_row(frontier=5), "frontier"),
    "negative frontier": (of_row(frontier=-1), "frontier"),
    "final without an end": (of_row(state="failed", chunks_skipped=133), "finished_at"),
    "end of an open one": (of_row(finished_at=1), "finished_at"),
    "chunks left in a final one": (of_row(state="failed", finished_at=1), "left"),
    "scheduled for no time": (of_row(state="scheduled"), "not_before_at"),
    "blocked by nothing": (
        of_row(state="blocked", frontier=0, chunks_completed=0, chunks_dead=0, chunks_skipped=0, chunks_dropped=0),
        "waits for",
    ),
    "blocked though work has begun": (
        lambda header: of_header(waits=[WAIT._replace(outcome=None)])(of_row(state="blocked")(header)),
        "begun",
    ),
    "waits though it is open": (of_header(waits=[WAIT._replace(outcome=None)]), "waits for"),
    "waits twice": (of_header(waits=[WAIT, WAIT]), "twice"),
    "waits for something else": (of_header(waits=[WAIT._replace(needs="luck")]), "needs"),
    "duration": (of_row(reservation_s=-1.0), "reservation_s"),
    "duration that is no number": (of_row(backoff_max_s=float("nan")), "backoff_max_s"),
    "delay": (of_row(delay_ms=-1), "delay_ms"),
    "instant": (of_row(expires_at=1 << 62), "expires_at"),
    "clock": (of_header(exported_at=-1), "exported_at"),
    "request key": (of_row(request_key=b"short"), "request_key"),
    "unique key": (of_row(unique_key="k" * 2000), "unique_key"),
    "key until": (of_row(unique_until="never"), "unique_until"),
    "idempotency key": (of_header(idempotency_key=""), "idempotency_key"),
    "title": (of_about(title="a\x1b[1m"), "title"),
    "submitter": (of_about(submitted_by="a\nb"), "submitted_by"),
    "metadata": (of_header(metadata={"a b": 1}), "metadata"),
    "built-in metadata": (of_header(metadata={"tenant": "a", "submission": 1}), "submission"),
    "too much metadata": (of_header(metadata={"tenant": "a"} | {f"k{n}": n for n in range(99)}), "pairs"),
    "weight without its pair": (of_header(weights={"other": 2.0}), "other"),
    "weight": (of_header(weights={"tenant": -2.0}), "weights"),
    "content": (of_header(content=bytes(1 << 17)), "content"),
    "attachment": (of_header(attachment=bytes(1 << 21)), "attachment"),
    "other submission": (of_row(id=5), "5"),
    "format": (of_header(format=9), "format"),
}
SLICES = {
    "block beyond the frontier": (of_slice(blocks=[(2, 1)]), "blocks"),
    "block beyond the total": (of_slice(blocks=[(10**9, 255)]), "blocks"),
    "negative block": (of_slice(blocks=[(-1, 1)]), "blocks"),
    "empty mask": (of_slice(blocks=[(0, 0)]), "blocks"),
    "attempts beyond the frontier": (of_slice(attempts=[(2, AttemptRow(1, 1, 0, 0, 0))]), "attempts"),
    "number of attempts": (of_slice(attempts=[(0, AttemptRow(1, -1, 0, 0, 0))]), "attempts"),
    "back-off": (of_slice(attempts=[(0, AttemptRow(1, 1, 0, 1, 1 << 60))]), "delay_ms"),
    "dead chunk beyond the total": (of_slice(dead=[DeadRow(5, 200, 1, 0, 1, "", None, None)]), "dead"),
    "negative dead chunk": (of_slice(dead=[DeadRow(5, -1, 1, 0, 1, "", None, None)]), "chunk"),
    "exit status": (of_slice(dead=[DeadRow(5, 2, 1, 0, 1, "", 256, None)]), "exit_status"),
    "dropped beyond the total": (of_slice(dropped=[(3, 1 << 60)]), "dropped"),
    "results of other chunks": (of_slice(results=[(0, 7, msgspec.msgpack.encode([b""]))]), "results"),
    "results that are none": (of_slice(results=[(0, 1, b"\xc1")]), "malformed"),
    "results that are nested": (of_slice(results=[(0, 1, b"\x91" * 100_000)]), "malformed"),
    "large result": (of_slice(results=[(0, 1, msgspec.msgpack.encode([bytes(5000)]))]), "results"),
    "fewer pending": (of_slice(blocks=[]), "chunks_total"),
    "fewer dead": (of_slice(dead=[]), "chunks_dead"),
    "fewer dropped": (of_slice(dropped=[]), "chunks_dropped"),
    "dead and pending": (of_slice(dead=[DeadRow(5, 5, 1, 0, 1, "", None, None)]), "two of"),
    "dropped and pending": (of_slice(dropped=[(0, 1 << 5)]), "two of"),
    "dropped and dead": (of_slice(dropped=[(0, 1 << 2)]), "two of"),
    "too many rows": (of_slice(blocks=[(0, 1)] * 2001), "2000 rows"),
    "clock": (of_slice(exported_at=1 << 62), "exported_at"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_that_cannot_be_is_refused_by_its_field(pair: Pair, name: str) -> None:
    sent = Sent(pair)
    change, field = HEADERS[name]
    with pytest.raises(UsageError, match=field) as caught:
        sent.stage(change(sent.header), sent.slice)
    assert str(sent.submission) in caught.value.message
    assert pair.target.rows("SELECT 1 FROM submission") == pair.target.rows("SELECT 1 FROM arriving") == []
    pair.check()


@pytest.mark.parametrize("name", SLICES)
def test_slice_that_cannot_be_is_refused_by_its_table(pair: Pair, name: str) -> None:
    sent = Sent(pair)
    change, field = SLICES[name]
    with pytest.raises(UsageError, match=field) as caught:
        sent.stage(sent.header, change(sent.slice))
    assert str(sent.submission) in caught.value.message
    assert pair.target.rows("SELECT next_slice FROM arriving") == [(1,)]
    pair.check()
    sent.mover.drop(sent.held)
    pair.settle()
    assert pair.target.rows("SELECT 1 FROM submission") == []
    pair.check()


@pytest.mark.parametrize("name", EVENT_FIELDS)
def test_event_that_cannot_be_is_refused(pair: Pair, name: str) -> None:
    sent = Sent(pair)
    [first, *others] = sent.slice.history
    with pytest.raises(UsageError, match="history"):
        sent.stage(sent.header, replace(sent.slice, history=[replace(first, **{name: EVENT_FIELDS[name]}), *others]))


@pytest.mark.parametrize("shard", [0, SHARD])
def test_ids_that_are_still_to_be_given_are_refused(pair: Pair, shard: int) -> None:
    """Those of the target itself from now on, those of others from tomorrow on: else it would count on from there."""
    sent = Sent(pair)
    wall = pair.target.now.wall - EPOCH_MS
    late = (wall + (2 * DAYS_MS if shard == 0 else 1000)) << 22 | shard << 12
    header = replace(sent.header, row=sent.header.row._replace(id=late))
    sent.held.submission_ids[0] = late
    with pytest.raises(UsageError, match="future"):
        sent.stage(header, sent.slice)
    assert pair.target.rows("SELECT 1 FROM submission") == []


def test_rows_that_come_twice_are_refused(pair: Pair) -> None:
    sent = Sent(pair)
    with pytest.raises(UsageError, match="twice"):
        sent.stage(sent.header, sent.slice, times=2)
    pair.check()


SPLITS: dict[str, tuple[Slice, str]] = {
    "pending chunks of one block": (Slice(1, blocks=[(0, 1 << 5)]), "blocks has block 0 twice"),
    "dropped chunks of one block": (Slice(1, dropped=[(0, 1 << 5)]), "two of"),
    "dead and pending": (Slice(1, dead=[DeadRow(5, 5, 1, 0, 1, "", None, None)]), "two of"),
    "dead twice": (Slice(1, dead=[DeadRow(5, 2, 1, 0, 1, "", None, None)]), "two of"),
    "dropped and dead": (Slice(1, dropped=[(0, 1 << 2)]), "two of"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_slice_that_contradicts_an_earlier_one_is_refused(pair: Pair, name: str) -> None:
    sent = Sent(pair)
    later, complaint = SPLITS[name]
    mover, held = sent.mover, sent.held
    mover.stage(held, m.ExportedSlice(0, transfer.encode(sent.header), transfer.START))
    mover.stage(held, m.ExportedSlice(0, transfer.encode(replace(sent.slice, dropped=[])), transfer.START), 1)
    with pytest.raises(UsageError, match=complaint):
        mover.stage(held, m.ExportedSlice(0, transfer.encode(later), transfer.START), 2)
    assert pair.target.rows("SELECT next_slice FROM arriving") == [(2,)]
    pair.check()


def test_slice_is_compared_with_what_is_stored_by_one_statement_that_looks_it_up(pair: Pair) -> None:
    reader = pair.target.database.reader
    asked: list[tuple[str, Any]] = []
    reader.exec_trace = lambda _, sql, bindings: asked.append((sql, bindings)) is None
    full = Slice(1, blocks=[(block, 1) for block in range(transfer.SLICE_ROWS)])
    assert transfer.added(reader, 5, transfer.NOTHING, full).pending == transfer.SLICE_ROWS
    reader.exec_trace = None
    [(sql, bindings)] = asked
    plan = [row[-1] for row in reader.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
    assert [step for step in plan if step.startswith(("SEARCH", "SCAN", "USE")) and "json_each" not in step] == [
        "SEARCH block USING PRIMARY KEY (submission_id=? AND block=?)",
        "SEARCH dropped USING PRIMARY KEY (submission_id=? AND block=?)",
        "SEARCH dead USING PRIMARY KEY (submission_id=? AND chunk>? AND chunk<?)",
    ]


def test_submission_in_many_slices_arrives_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(pair)
    monkeypatch.setattr(transfer, "SLICE_ROWS", 1)
    sent.mover.copy(sent.held)
    [(pending, dead, dropped)] = pair.target.rows("SELECT pending_count, dead_count, dropped_count FROM arriving")
    row = sent.header.row
    assert (dead, dropped) == (row.chunks_dead, row.chunks_dropped) == (1, 1)
    assert pending == row.frontier * 64 - row.chunks_completed - dead - dropped
    sent.mover.commit(sent.held)
    assert sent.mover.activate(sent.held) == 1
    pair.settle()
    pair.check()


@pytest.mark.parametrize("on_failed", ["cancel", "keep"])
def test_submission_that_comes_without_what_it_waits_for_does_not_wait_for_ever(pair: Pair, on_failed: str) -> None:
    rig = pair.source
    first = rig.submit(1)
    waiting = rig.submit(5, after=[m.Dependency(first)], on_failed_dependency=on_failed)
    mover, held = pair.holding()
    held.submission_ids[:] = [waiting]
    mover.copy(held)
    assert mover.activate(held) == 1
    pair.settle()
    assert pair.target.broken_rules() == []
    found = states(pair.target)[waiting]
    assert (found.state, found.reason) == ("cancelled", f"Submission {first}, which it waited for, was removed.")


@pytest.mark.parametrize("is_ended", [False, True])
def test_submission_that_is_active_before_what_it_waits_for_goes_on_waiting(pair: Pair, is_ended: bool) -> None:
    rig = pair.source
    first, other = rig.submit(1), rig.submit(1)
    waiting = rig.submit(5, after=[m.Dependency(first, "ended"), m.Dependency(other)])
    if is_ended:
        rig.ask(rig.connect(), m.Cancel(next(rig.ids), first))
    mover = pair.mover(with_final=True)
    list(mover.recover())
    held = mover.hold()
    mover.copy(held)
    for one in (waiting, other, first):
        held.submission_ids[:] = [one]
        assert mover.activate(held) == 1
        pair.settle()
        assert states(pair.target)[waiting].state == "blocked"
    assert pair.target.broken_rules() == []
    peer = pair.target.connect("worker")
    for ticket in pair.target.reserve(peer, 10):
        pair.target.complete(peer, ticket.held())
    assert states(pair.target)[waiting].state == "open"


def test_broken_submission_stays_and_the_others_move(pair: Pair) -> None:
    rig = pair.source
    first, damaged, last = (rig.submit(3) for _ in range(3))
    rig.database.writer.execute("UPDATE submission SET max_lost = -1 WHERE id = ?", (damaged,))
    mover = pair.move()
    assert list(mover.left) == [damaged]
    assert "max_lost" in mover.left[damaged]
    assert set(states(rig)) == {damaged}
    assert set(states(pair.target)) == {first, last}
    assert len(rig.reserve(rig.connect("worker"), 5)) == 1


def broken(value: Any, rng: random.Random) -> Any:
    """Something that is like a value, with one leaf that is not."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        return value | {key: broken(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.95:
        place = rng.randrange(len(value))
        return [*value[:place], broken(value[place], rng), *value[place + 1 :]]
    near = [value + 1, value - 1, -value, value * 64] if isinstance(value, int) else []
    far = [None, 0, 1, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 63, 0.5, float("inf"), "", "open", b"", [], {}]
    return rng.choice([one for one in [*near, *far] if not isinstance(one, int) or -(1 << 63) <= one < 1 << 64])


@pytest.mark.parametrize("seed", range(4))
def test_no_broken_source_damages_the_target_or_ends_it(pair: Pair, seed: int) -> None:
    """Whatever is refused, or taken: the file is sound, and what was taken can be worked off."""
    rng = random.Random(seed)
    sent = Sent(pair)
    whole = [msgspec.msgpack.decode(transfer.encode(one)) for one in (sent.header, sent.slice)]
    target, mover, held = pair.target, sent.mover, sent.held
    while True:
        parts = list(whole)
        place = rng.randrange(2)
        parts[place] = broken(parts[place], rng)
        try:
            for number, part in enumerate(parts):
                after = None if number else transfer.START
                mover.stage(held, m.ExportedSlice(0, msgspec.msgpack.encode(part), after), number)
        except UsageError:
            assert target.broken_rules() == []
            mover.give_up(held)
            pair.settle()
        else:
            break
    assert target.broken_rules() == []
    assert mover.activate(held) == 1
    pair.settle()
    assert target.broken_rules() == []
    peer = target.connect("worker")
    for ticket in target.reserve(peer, 500):
        target.complete(peer, ticket.held())
    pair.settle()
    assert target.broken_rules() == []
    assert target.submit(1, request_key=b"another request!") in states(target)
