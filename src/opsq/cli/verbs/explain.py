"""The verb explain: how a strategy is served, arm by arm, or why work is not running.

It must not format the answer: `explain_drawing` does for a terminal, `documents.strategy_text` for a pipe.
"""

from __future__ import annotations

import re
from typing import TypeVar

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import with_restart
from opsq.cli.output.explanation import print_strategy, print_work
from opsq.cli.stopped_queue import StoppedQueue, asked
from opsq.documents.strategies import ExplainDocument, WorkDocument
from opsq.errors import InvalidStrategy, NotFound, UsageError
from opsq.ids import SubmissionId, parse_handle
from opsq.options.conditions import chunk_name
from opsq.options.option import argument, option
from opsq.wire.messages import Explain, Explained, ExplainWork, Request, WorkExplained

R = TypeVar("R")
_STOPPED = "No daemon runs: this is what {} says."


def explain(
    caller: Caller,
    what: str = argument(
        "[STRATEGY|ID]",
        "A strategy, also by its name in the settings; or a submission, a chunk or a handle.",
        default="Random",
    ),
    analyze: bool = option("-a, --analyze", "Try the strategy out on the queue as it is; nothing is reserved."),
) -> None:
    """Show how a strategy is served: its arms, their SQL and plans; or why a submission or chunk is not running.

    A strategy is OldestFirst, Fair(tenant), or any other of opsq-strategies(7). A submission is named by its ID, a
    chunk as SUBMISSION/INDEX or by its handle. While no daemon runs, the database is read instead.
    """
    if not what.strip():
        raise UsageError("Neither a strategy nor an ID was given.", hint="`opsq explain` alone explains Random.")
    if re.match(r"[0-9]", what):
        if analyze:
            raise UsageError("--analyze tries out a strategy; a submission or chunk is explained without it.")
        _explain_work(caller, what)
        return
    try:
        reply, is_running = _ask(caller, Explain(1, what, analyze), Explained)
    except InvalidStrategy as error:
        raise with_restart(error, caller.settings, what) from None
    caller.document(ExplainDocument.from_reply(reply, is_running=is_running))
    print_strategy(caller, reply)
    if not is_running:
        caller.remark(_STOPPED.format(caller.settings.database_path))


def _explain_work(caller: Caller, text: str) -> None:
    submission_id: SubmissionId
    index: int | None
    if "@" in text:
        handle = parse_handle(text)
        submission_id, index = SubmissionId(handle.submission_id), handle.index
    else:
        submission_id, index = chunk_name(text)
    reply, is_running = _ask(caller, ExplainWork(1, submission_id, index), WorkExplained)
    caller.document(WorkDocument.from_message(reply, is_running=is_running))
    print_work(caller, reply)


def _ask(caller: Caller, request: Request, kind: type[R]) -> tuple[R, bool]:
    """The answer of the daemon, or of its file; and whether a daemon runs."""
    with asked(caller) as queue:
        is_running = not isinstance(queue, StoppedQueue)
        try:
            return queue.call(request, kind), is_running
        except NotFound as missing:
            if not is_running:
                missing.hint = _STOPPED.format(caller.settings.database_path)
            raise
