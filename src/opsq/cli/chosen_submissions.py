"""Which submissions a command line means, by id or by conditions, and how they are listed or changed one by one.

It must not read options: `options.conditions` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.long_list import Listing, print_list
from opsq.documents.asking import Asked
from opsq.documents.submission_text import pairs_text
from opsq.documents.submissions import ChangedDocument, ListDocument, SubmissionShape
from opsq.errors import Conflict, NotFound, OpsqError, UsageError
from opsq.ids import SubmissionId, made_at
from opsq.options import values
from opsq.options.conditions import SubmissionConditions
from opsq.options.option import option
from opsq.units import counted
from opsq.wire.messages import Changed, List, Listed, Request, SubmissionState

DRY_RUN = option("--dry-run", "Change nothing; list the submissions that would change.")

_PAGE_ROWS = 1000
_NO_CONDITION = SubmissionConditions()
_TOLD_FAILURES = 10


class Change(NamedTuple):
    """What a verb does to submissions: `done` is its participle, `states` are those in which it is possible."""

    verb: str
    done: str
    states: tuple[str, ...]
    request: Callable[[int, SubmissionId], Request]


def pages(
    daemon: Asked, where: SubmissionConditions, *, before: SubmissionId | None = None, count: int = _PAGE_ROWS
) -> Iterator[list[SubmissionState]]:
    """The submissions that fulfil conditions, newest first, page by page.

    A submission that fulfils them all the time comes exactly once, whatever is submitted or ends in between, and none
    comes twice: a page goes on behind the last id.
    """
    states, metadata = where.state, values.metadata(where.metadata)
    from_at, to_at = where.submitted()
    following: int | None = before
    while True:
        page = daemon.call(List(daemon.next_id(), states, metadata, following, count), Listed)
        yield [
            item
            for item in page.submissions
            if (from_at is None or item.submitted_at >= from_at) and (to_at is None or item.submitted_at < to_at)
        ]
        following = page.next_before
        # No older one is made later, and no id is behind the clock.
        if following is None or (from_at is not None and made_at(following) < from_at):
            return


def print_submissions(
    caller: Caller, daemon: Asked, where: SubmissionConditions, limit: int | None, before: SubmissionId | None = None
) -> None:
    """Print the submissions that fulfil conditions; at most `limit`."""
    count = _PAGE_ROWS if limit is None else min(limit + 1, _PAGE_ROWS)
    print_list(caller, pages(daemon, where, before=before, count=count), _LISTING, limit)


def check_choice(
    verb: str, ids: Sequence[SubmissionId], where: SubmissionConditions, *, is_all: bool, is_dry_run: bool = False
) -> None:
    """Make sure that a command line says explicitly which submissions it means.

    Raises:
        UsageError: it names none, or names them in two ways.
    """
    has_conditions = where != _NO_CONDITION
    if is_all + bool(ids) + has_conditions > 1:
        raise UsageError("IDs, conditions and --all cannot be combined.", hint="Give one of them.")
    if not (is_all or ids or has_conditions):
        raise UsageError(
            f"opsq {verb} needs an ID, a condition, or --all.", hint=f"`opsq {verb} --help` explains them."
        )
    if is_dry_run and ids:
        raise UsageError("--dry-run shows what conditions select; submissions that are named need none.")


def _change(daemon: LastingConnection, change: Change, submission_id: SubmissionId) -> int:
    """Change a submission; returns whether that is so now.

    What a daemon had done when it went away is found done by the next, which cannot tell it from what was done before.
    """
    restarts_count = daemon.restarts_count
    try:
        count = daemon.call(change.request(daemon.next_id(), submission_id), Changed).count
    except NotFound:
        if change.done != "removed" or daemon.restarts_count == restarts_count:
            raise
        count = 0
    return count or int(daemon.restarts_count > restarts_count)


def _change_each(
    daemon: LastingConnection, change: Change, ids: Sequence[SubmissionId]
) -> tuple[int, OpsqError | None]:
    """Change each of these, also those behind one that cannot be changed.

    Returns:
        How many changed, and what went wrong, in the words of the first that failed.
    """
    count = 0
    failures: list[OpsqError] = []
    for submission_id in dict.fromkeys(ids):
        try:
            count += _change(daemon, change, submission_id)
        except (NotFound, Conflict) as error:
            failures.append(error)
    if not failures:
        return count, None
    first = failures[0]
    messages = [error.message for error in failures[:_TOLD_FAILURES]]
    if len(failures) > _TOLD_FAILURES:
        messages.append(f"{len(failures) - _TOLD_FAILURES} more could not be {change.done}.")
    first.message = "\n".join(messages)
    return count, first


def change_submissions(
    caller: Caller,
    change: Change,
    ids: Sequence[SubmissionId],
    conditions: SubmissionConditions,
    *,
    is_all: bool,
    is_dry_run: bool,
) -> None:
    """Change the submissions that a command line means, and report how many were changed."""
    check_choice(change.verb, ids, conditions, is_all=is_all, is_dry_run=is_dry_run)
    where = conditions._replace(state=conditions.state or list(change.states))
    with LastingConnection(caller) as daemon:
        if is_dry_run:
            print_submissions(caller, daemon, where, None)
            return
        failure: OpsqError | None = None
        if ids:
            count, failure = _change_each(daemon, change, ids)
        else:  # what has changed since its page was read, and no longer fulfils them, is passed over
            count = sum(
                _change_each(daemon, change, [SubmissionId(item.submission_id) for item in page])[0]
                for page in pages(daemon, where)
            )
    if count:
        caller.remark(f"{counted(count, 'submission')} {'is' if count == 1 else 'are'} {change.done}.")
    elif ids and failure is None:
        caller.remark(f"Nothing was {change.done}: {'it' if len(ids) == 1 else 'they'} had already ended.")
    elif not ids:
        warn_of_none(caller, change.verb)
    caller.conclude(ChangedDocument(count), failure)


_FOR = {"wait": "wait for", "rm": "remove"}


def warn_of_none(caller: Caller, verb: str) -> None:
    """Tell, scripts too, that conditions select nothing: it is no error, but may be a typing error."""
    caller.warn(f"There is no submission to {_FOR.get(verb, verb)} under these conditions.")


def _row(caller: Caller, state: SubmissionState) -> list[object]:
    return [
        state.submission_id,
        state.state,
        state.chunks_count,
        state.completed_count,
        state.dead_count,
        caller.instant(state.submitted_at),
        pairs_text(state.metadata),
        state.title or ("" if caller.is_rich else "-"),
    ]


_LISTING = Listing(
    document=ListDocument,
    columns=("id", "state", "chunks", "done", "dead", "submitted", "metadata", "title"),
    right=frozenset({"chunks", "done", "dead"}),
    shape=SubmissionShape.from_state,
    row=_row,
    instant="submitted",
    next_of=lambda state: state.submission_id,
    going_on="--before",
)
