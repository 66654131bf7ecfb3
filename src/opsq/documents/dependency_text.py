"""Draws what a submission waits for, and who waits for it, as lines of text. It must not print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsq.documents.submission_text import pairs_text
from opsq.wire.messages import DependencyEdge

_STEP = "  "


def dependency_rows(submission_id: int, edges: Sequence[DependencyEdge]) -> list[tuple[str, str]]:
    """Lines under `after` and `needed by`, the nearest first, each step further away indented."""
    up: dict[int, list[DependencyEdge]] = {}
    down: dict[int, list[DependencyEdge]] = {}
    by_pair: list[DependencyEdge] = []
    above = {submission_id}
    for edge in edges:
        if edge.submission_id in above:  # what is waited for comes first, the nearest in front
            up.setdefault(edge.submission_id, []).append(edge)
            if edge.on_submission_id is not None:
                above.add(edge.on_submission_id)
        elif edge.on_submission_id is not None:
            down.setdefault(edge.on_submission_id, []).append(edge)
        else:
            by_pair.append(edge)
    rows = [("after", line) for line in _above(submission_id, up, "", set())]
    rows += [("needed by", line) for line in _below(submission_id, down, "", set())]
    return rows + [("needed by", f"{edge.submission_id}: {edge.state}, by {_pair(edge)}") for edge in by_pair]


def _above(one: int, edges: dict[int, list[DependencyEdge]], indent: str, seen: set[int]) -> Iterator[str]:
    if one in seen:
        return
    seen.add(one)
    for edge in edges.get(one, ()):
        yield indent + _wanted(edge)
        if edge.on_submission_id is not None:
            yield from _above(edge.on_submission_id, edges, indent + _STEP, seen)


def _below(one: int, edges: dict[int, list[DependencyEdge]], indent: str, seen: set[int]) -> Iterator[str]:
    if one in seen:
        return
    seen.add(one)
    for edge in edges.get(one, ()):
        yield f"{indent}{edge.submission_id}: {edge.state}"
        yield from _below(edge.submission_id, edges, indent + _STEP, seen)


def _wanted(edge: DependencyEdge) -> str:
    """What is waited for, how it must end, and how it stands."""
    if edge.on_submission_id is None:
        return f"the end of all with {_pair(edge)}: {edge.outcome or 'waited for'}"
    must = "the end of " if edge.needs == "ended" else ""
    now = edge.on_state or "gone"
    then = (
        ""
        if edge.outcome in (None, now)
        else ", waited for no more"
        if edge.outcome == "void"
        else f", {edge.outcome} then"
    )
    return f"{must}{edge.on_submission_id}: {now}{then}"


def _pair(edge: DependencyEdge) -> str:
    return pairs_text({edge.key or "": edge.value if edge.value is not None else ""})
