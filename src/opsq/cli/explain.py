"""The verb explain: how a strategy is served, arm by arm."""

from __future__ import annotations

from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.json_shapes import ExplainDocument, arm_shape
from opsq.wire.messages import Arm, Explain, Explained


def explain(
    caller: Caller,
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="Random, OldestFirst, NewestFirst, or a composed one.")] = "Random",
) -> None:
    """Show how a strategy is served: its arms, their SQL, their query plans, and where their fronts are."""
    with caller.connect() as daemon:
        reply = daemon.call(Explain(daemon.next_id(), strategy), Explained)
    caller.document(ExplainDocument(reply.strategy, [arm_shape(arm) for arm in reply.arms], reply.notes))
    show_explained(caller, reply)


def show_explained(caller: Caller, reply: Explained) -> None:
    """Print an explanation: a tree on a terminal, plain lines in a pipe."""
    if caller.is_rich:
        _draw(caller, reply)
        return
    lines = [reply.strategy]
    for number, arm in enumerate(reply.arms, 1):
        lines.append(f"arm {number}: {arm.order} over {arm.lane}")
        for title, sql, plan in _statements(arm):
            lines += [f"  {title}:", *(f"    {line}" for line in sql.strip().splitlines()), *(f"    | {step}" for step in plan)]
        lines.append("  front: " + _front(arm))
    lines += [f"note: {note}" for note in reply.notes]
    caller.lines(lines)


def _draw(caller: Caller, reply: Explained) -> None:
    from rich.syntax import Syntax
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(reply.strategy, style="bold"))
    for number, arm in enumerate(reply.arms, 1):
        branch = tree.add(Text(f"arm {number}: {arm.order} over {arm.lane}"))
        for title, sql, plan in _statements(arm):
            node = branch.add(Text(title))
            node.add(Syntax(sql.strip(), "sql", background_color="default", word_wrap=True))
            steps = node.add(Text("plan", style="dim"))
            for step in plan:
                steps.add(Text(step))
        branch.add(Text("front: " + _front(arm)))
    caller.console.print(tree)
    for note in reply.notes:
        caller.console.print(Text(note, style="dim"))


def _statements(arm: Arm) -> list[tuple[str, str, list[str]]]:
    return [("walk", arm.walk_sql, arm.walk_plan), ("supply", arm.supply_sql, arm.supply_plan)]


def _front(arm: Arm) -> str:
    return ", ".join(f"{name} {'-' if value is None else value}" for name, value in arm.front.items()) or "-"
