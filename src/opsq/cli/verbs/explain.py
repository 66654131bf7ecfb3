"""The verb explain: how a strategy is served, arm by arm, or why work is not running.

How it looks on a terminal stands in `explain_drawing`; pipes get the plain lines of this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, TypeVar

import typer

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import with_restart
from opsq.cli.output.strategy_documents import explain_document, work_document
from opsq.cli.output.strategy_shapes import NodeShape
from opsq.cli.stopped_queue import ask_stopped
from opsq.cli.verbs.submissions import pairs_text
from opsq.errors import InvalidStrategy, NotFound, Unreachable, UsageError
from opsq.ids import parse_handle, parse_submission_id
from opsq.strategy import explain as strategies
from opsq.strategy.text import parse
from opsq.wire.messages import Arm, Explain, Explained, ExplainWork, Request, WorkExplained

R = TypeVar("R")


def explain(
    caller: Caller,
    what: Annotated[
        str,
        typer.Argument(
            metavar="STRATEGY|ID",
            help="A strategy, also by its name in the settings; or a submission, a chunk or a handle.",
        ),
    ] = "Random",
    analyze: Annotated[
        bool, typer.Option("--analyze", "-a", help="Try the strategy out on the queue as it is; nothing is reserved.")
    ] = False,
) -> None:
    """Show how a strategy is served: its arms, their SQL and plans; or why a submission or chunk is not running.

    A strategy is OldestFirst, Fair(tenant), or any other of opsq-strategies(7). A submission is named by its ID, a chunk as
    SUBMISSION/INDEX or by its handle. While no daemon runs, its file is read.
    """
    if re.match(r"[0-9]", what):
        if analyze:
            raise UsageError("--analyze tries out a strategy; a submission or chunk is explained without it.")
        _explain_work(caller, what)
        return
    try:
        reply, is_running = _ask(caller, Explain(1, what, analyze), Explained)
    except InvalidStrategy as error:
        raise with_restart(error, caller.settings, what) from None
    tree = [NodeShape(*node) for node in strategies.outline(parse(reply.strategy))]
    caller.document(explain_document(reply, tree, is_running=is_running))
    show_explained(caller, reply)
    if not is_running:
        caller.remark(f"No daemon runs: this is what {caller.settings.database_path} says.")


def _explain_work(caller: Caller, text: str) -> None:
    index: int | None = None
    if "@" in text:
        handle = parse_handle(text)
        submission_id, index = handle.submission_id, handle.index
    else:
        id_text, slash, index_text = text.partition("/")
        submission_id = parse_submission_id(id_text)
        if slash and not (index_text.isascii() and index_text.isdigit()):
            raise UsageError(
                f"{text!r} names no chunk: write SUBMISSION/INDEX, or a handle as `opsq reserve` prints it."
            )
        index = int(index_text) if slash else None
    reply, is_running = _ask(caller, ExplainWork(1, submission_id, index), WorkExplained)
    caller.document(work_document(reply, is_running=is_running))
    if caller.is_rich:
        from opsq.cli.output.explain_drawing import draw_work

        draw_work(caller.console, reply)
    else:
        headline, *facts = reply.reasons
        caller.lines([f"{reply.verdict}: {headline}", *(f"  {fact}" for fact in facts)])


def _ask(caller: Caller, request: Request, kind: type[R]) -> tuple[R, bool]:
    """The answer of the daemon, or of its file; and whether a daemon runs."""
    try:
        daemon = caller.connect()
    except Unreachable as error:
        try:
            return ask_stopped(caller, error, request, kind), False
        except NotFound as missing:
            missing.hint = f"No daemon runs: this is what {caller.settings.database_path} says."
            raise missing from None
    with daemon:
        return daemon.call(request, kind), True


def show_explained(caller: Caller, reply: Explained) -> None:
    """Print an explanation: a tree on a terminal, plain lines in a pipe."""
    if caller.is_rich:
        from opsq.cli.output.explain_drawing import draw_strategy

        draw_strategy(caller.console, reply)
        return
    lines = [reply.strategy]
    lines += [
        f"{'  ' * (depth + 1)}{node} -- {rule}" for depth, node, rule in strategies.outline(parse(reply.strategy))
    ]
    for number, arm in enumerate(reply.arms, 1):
        lines += _lines(f"arm {number}: ", arm, "")
    lines += [
        f"offer: {offer.submission_id}/{offer.index} arm {offer.arm} attempt {offer.attempt} {pairs_text(offer.metadata)}".rstrip()
        for offer in reply.offers
    ]
    lines += [f"note: {note}" for note in reply.notes]
    caller.lines(lines)


def _lines(title: str, arm: Arm, indent: str) -> Iterator[str]:
    yield f"{indent}{title}{arm_name(arm)}"
    yield f"{indent}  why: {arm.why}"
    for statement in arm.statements:
        yield f"{indent}  {statement.purpose}: {statement.sql}"
        for step in statement.plan:
            verdict = f"  -- {step.verdict}" if step.verdict else ""
            yield f"{indent}    {'  ' * step.depth}{step.detail}{verdict}"
    if not indent:
        yield f"{indent}  front: {front_text(arm)}"
    for name, text in analysis_texts(arm):
        yield f"{indent}  {name}: {text}"
    for inner in arm.inner:
        yield from _lines("within a value: ", inner, indent + "  ")


# --- in words, for both -----------------------------------------------------------------------------------------------------------


def arm_name(arm: Arm) -> str:
    """What an arm serves."""
    over = " and ".join(arm.filters) or "everything"
    return f"{arm.order} over {over}" + (f", while {' and '.join(arm.gates)}" if arm.gates else "")


def front_text(arm: Arm) -> str:
    """Where the front of an arm stands."""
    front = arm.front
    if not front:
        return "not used yet"
    walked = "walked to the end" if front["is_walked"] else "not walked to the end"
    if "values" in front:
        return f"{walked}, {front['values']} values, {front['values_with_work']} with work, {front['rows_visited']} rows visited so far"
    level = "" if front["is_walked"] else f" (read level {front['read_level']})"
    known = f"{front['known_free']} submissions known free, {front['set_aside']} set aside"
    return f"{walked}{level}, {known}, {front['rows_visited']} rows visited so far"


def analysis_texts(arm: Arm) -> Iterator[tuple[str, str]]:
    """What a dry reservation has found of an arm: pairs of a title and a text; nothing without --analyze."""
    found = arm.analysis
    if not found:
        return
    offered, served = found["offered"], found["served"]
    if offered:
        of = "one submission" if found["submissions"] == 1 else f"{found['submissions']} submissions"
        chunks = "1 chunk" if offered == 1 else f"{offered} chunks"
        verdict = f"gives {chunks} of {of}; {found['calls']} calls for one chunk each get {served} in all"
    elif found["is_dry"]:
        verdict = "gives nothing: none of it may be handed out now"
    elif found["is_cut"]:
        verdict = "no verdict: it has visited all rows that one turn may"
    else:
        verdict = f"has work, but the arms before it serve all {found['calls']} calls for one chunk each"
    yield "dry run", verdict + (", then stopped at the bound of one turn" if offered and found["is_cut"] else "")
    level = found.get("read_level")
    yield "rows", f"{found['rows_visited']} visited" + (f", read level {level}" if level else "")
    aside = found["set_aside"]
    gates = [f"{count} at {gate}" for gate, count in aside.items()] if isinstance(aside, dict) else []
    yield "set aside", ", ".join(gates) or "none"
    yield "busy", f"{found['reserved']} chunks reserved, {found['in_back_off']} in back-off"
    parts = [(name.removesuffix("_us").replace("_", "-"), us) for name, us in found.items() if name.endswith("_us")]
    yield "µs", ", ".join(f"{name} {us}" for name, us in parts)
