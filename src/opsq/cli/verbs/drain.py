"""The verb drain: has the daemon take no new submissions, and what is there worked off, or moved to another daemon.

And, at that other daemon, ends a move whose source is gone. It must not know how submissions move.
"""

from __future__ import annotations

import time

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.moving import Moving
from opsq.cli.shard_options import are_sharded
from opsq.documents.submissions import ChangedDocument
from opsq.errors import Conflict, TimedOut, UsageError
from opsq.options.option import as_option, duration, option
from opsq.units import counted
from opsq.wire.messages import UNFINISHED_STATES, Changed, DaemonState, Drain, GiveUpSource, SourceGivenUp, Status

_LOOK_S = 0.5
_SOURCE_DIGITS = 32


def _source(origin: str, given: str) -> bytes:
    """The identity of a file, as `opsq status` shows it."""

    def parse(text: str) -> bytes:
        if len(text) != _SOURCE_DIGITS:
            raise ValueError(f"a source has {_SOURCE_DIGITS} hexadecimal digits; `opsq status` shows it")
        return bytes.fromhex(text)

    return bytes(as_option(origin, given, parse))


def drain(
    caller: Caller,
    undo: bool = option("--undo", "Take new submissions again."),
    to: str | None = option("--to ADDRESS", "Move what is unfinished to the daemon at this address."),
    every: bool = option("--all", "With --to, move also what has ended."),
    to_token_file: str | None = option("--to-token-file FILE", "The token for that daemon, if it is another one."),
    patience_s: float = option(
        "--patience D", "With --to, revoke reservations that last longer than this.", duration, 30.0
    ),
    wait: bool = option("-w, --wait", "Return when nothing is unfinished."),
    timeout_s: float | None = option("-t, --timeout D", "Give up waiting after this long, with exit 124.", duration),
    give_up: bytes | None = option(
        "--give-up SOURCE", "Drop what is moving here from a daemon that is gone for good.", _source
    ),
    force: bool = option("--force", "With --give-up, drop also complete copies: there may be no others."),
) -> None:
    """Take no new submissions, and work off what is there.

    It holds until --undo, also after a restart. Follow-ups still come with the completions that they belong to.
    Schedules wait, as if no daemon ran. With --to, submissions move to another daemon instead: if that is interrupted,
    run it again.

    If the source daemon is lost during a move, run --give-up at the target.
    """
    if force and give_up is None:
        raise UsageError("--force is for --give-up.")
    if give_up is not None and (undo or wait or to is not None):
        raise UsageError("--give-up takes neither --undo nor --wait nor --to.")
    if undo and (wait or to is not None):
        raise UsageError("--undo takes neither --wait nor --to.")
    if timeout_s is not None and not wait:
        raise UsageError("--timeout is for --wait.")
    if to is None and (every or to_token_file is not None):
        raise UsageError("--all and --to-token-file are for --to.")
    if give_up is not None:
        _give_up(caller, give_up, force=force)
        return
    moving = None if to is None else Moving(caller, to, to_token_file, with_final=every, wait_s=patience_s)
    with LastingConnection(caller) as daemon:
        if moving is None:
            count = daemon.call(Drain(daemon.next_id(), undo), Changed).count
            _remark(caller, count, is_undo=undo)
        else:
            moving.run()
            count = moving.count
            caller.remark(f"Moved {counted(count, 'submission')} to {to}.")
        if wait:
            _wait(daemon, timeout_s)
        if not undo:
            _warn_of_arriving(caller, daemon.call(Status(daemon.next_id()), DaemonState))
    caller.conclude(ChangedDocument(count), None if moving is None else _failure(moving))


def _give_up(caller: Caller, source: bytes, *, force: bool) -> None:
    """Drop the copies that came from a source; without `force` only those that no source has given away."""
    if are_sharded(caller):
        raise UsageError(
            "Submissions move to one daemon, and several were named.",
            hint="Name the one to which they were moving with --address; its `opsq status` has the source.",
        )
    with caller.connect() as daemon:
        given_up = daemon.call(GiveUpSource(daemon.next_id(), source, force), SourceGivenUp)
    if given_up.count or not given_up.left_count:
        caller.remark(f"Dropped {counted(given_up.count, 'staged submission')}.")
    if force and given_up.count:
        caller.warn("Anything that source had already handed over, but that was not yet active here, is lost.")
    caller.conclude(ChangedDocument(given_up.count), _left(given_up.left_count, force=force))


def _left(count: int, *, force: bool) -> Conflict | None:
    """Why some copies are still there."""
    if not count:
        return None
    found, is_one = f"{counted(count, 'submission')} from that source", count == 1
    if force:
        return Conflict(f"{found} {'was' if is_one else 'were'} being written.", hint="Try again in a moment.")
    why = "may be the only copy, so it was kept" if is_one else "may be the only copies, so they were kept"
    return Conflict(
        f"{found} {'is' if is_one else 'are'} complete here or being written, and {why}.",
        hint="If that daemon can be started again, run `opsq drain --to` there. --force drops them permanently.",
    )


def _remark(caller: Caller, count: int, *, is_undo: bool) -> None:
    if is_undo:
        caller.remark("It takes new submissions again." if count else "It was not being drained.")
    else:
        caller.remark("It takes no new submissions." if count else "It was being drained already.")


def _warn_of_arriving(caller: Caller, state: DaemonState) -> None:
    """What is on its way here is neither worked off nor moved on, and nobody sees it but in the status."""
    arriving_count = sum(each.submissions_count for each in state.arriving_from)
    if arriving_count:
        sources = ", ".join(each.address for each in state.arriving_from)
        verb = "is" if arriving_count == 1 else "are"
        caller.warn(
            f"{counted(arriving_count, 'submission')} from {sources} {verb} not active here yet: run"
            " `opsq drain --to` there again; if that daemon is gone for good, see --give-up."
        )


def _failure(moving: Moving) -> Conflict | None:
    """What has not moved, and why the first of that has not."""
    if not moving.left:
        return None
    submission_id, why = next(iter(moving.left.items()))
    return Conflict(
        f"{counted(len(moving.left), 'submission')} did not move; {submission_id}: {why}",
        hint="They are worked off where they are; `opsq drain --to` tries again.",
    )


def _wait(daemon: LastingConnection, timeout_s: float | None) -> None:
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while unfinished_count := _unfinished_count(daemon):
        left_s = _LOOK_S if end is None else min(end - time.monotonic(), _LOOK_S)
        if left_s <= 0:
            raise TimedOut(
                f"{counted(unfinished_count, 'submission')} not finished yet.",
                hint="`opsq list` shows them, and `opsq explain ID` what one of them waits for.",
            )
        time.sleep(left_s)


def _unfinished_count(daemon: LastingConnection) -> int:
    states = daemon.call(Status(daemon.next_id()), DaemonState).states
    return sum(states.get(name, 0) for name in UNFINISHED_STATES)
