"""Words an explained strategy as plain lines, and its parts for drawings of it.

It must not print or draw.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsq.documents.submission_text import nth, pairs_text
from opsq.strategy import explain as strategies
from opsq.strategy.text import parse
from opsq.units import counted
from opsq.wire.messages import Arm, Explained


def strategy_lines(reply: Explained) -> list[str]:
    """The whole explanation, as a pipe gets it."""
    lines = [reply.strategy]
    lines += [
        f"{'  ' * (depth + 1)}{node} -- {rule}" for depth, node, rule in strategies.outline(parse(reply.strategy))
    ]
    for number, arm in enumerate(reply.arms, 1):
        lines += _lines(f"arm {number}: ", arm, "")
    lines += [
        f"offer: {offer.submission_id}/{offer.index} arm {offer.arm} attempt {nth(offer.attempt)}"
        f" {pairs_text(offer.metadata)}".rstrip()
        for offer in reply.offers
    ]
    lines += [f"note: {note}" for note in reply.notes]
    return lines


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
        values = f"{counted(front['values'], 'value')}, {front['values_with_work']} with work"
        return f"{walked}, {values}, {counted(front['rows_visited'], 'row')} visited so far"
    level = "" if front["is_walked"] else f" (read level {front['read_level']})"
    known = f"{counted(front['known_free'], 'submission')} known free, {front['set_aside']} set aside"
    return f"{walked}{level}, {known}, {counted(front['rows_visited'], 'row')} visited so far"


def analysis_texts(arm: Arm) -> Iterator[tuple[str, str]]:
    """What a dry reservation has found of an arm: pairs of a title and a text; nothing without --analyze."""
    found = arm.analysis
    if not found:
        return
    offered, served = found["offered"], found["served"]
    if offered:
        of = "one submission" if found["submissions"] == 1 else f"{counted(found['submissions'], 'submission')}"
        chunks = "1 chunk" if offered == 1 else f"{counted(offered, 'chunk')}"
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
    yield "busy", f"{counted(found['reserved'], 'chunk')} reserved, {found['in_back_off']} in back-off"
    parts = [(name.removesuffix("_us").replace("_", "-"), us) for name, us in found.items() if name.endswith("_us")]
    yield "µs", ", ".join(f"{name} {us}" for name, us in parts)
