"""The verb explain: how a strategy is served, arm by arm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.json_documents import arm_shape
from opsq.cli.json_shapes import ExplainDocument
from opsq.wire.messages import Arm, Explain, Explained

if TYPE_CHECKING:
    from rich.tree import Tree


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
        lines += _lines(f"arm {number}: ", arm, "")
    lines += [f"note: {note}" for note in reply.notes]
    caller.lines(lines)


def _lines(title: str, arm: Arm, indent: str) -> Iterator[str]:
    yield f"{indent}{title}{_name(arm)}"
    for statement in arm.statements:
        yield f"{indent}  {statement.purpose}: {statement.sql}"
        for step in statement.plan:
            verdict = f"  -- {step.verdict}" if step.verdict else ""
            yield f"{indent}    {'  ' * step.depth}{step.detail}{verdict}"
    if arm.front:
        yield f"{indent}  front: {_front(arm)}"
    for inner in arm.inner:
        yield from _lines("within a value: ", inner, indent + "  ")


def _draw(caller: Caller, reply: Explained) -> None:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(reply.strategy, style="bold"))
    for number, arm in enumerate(reply.arms, 1):
        _grow(tree, f"arm {number}: ", arm)
    caller.console.print(tree)
    for note in reply.notes:
        caller.console.print(Text(note, style="dim"))


def _grow(tree: Tree, title: str, arm: Arm) -> None:
    from rich.syntax import Syntax
    from rich.text import Text

    branch = tree.add(Text(title + _name(arm)))
    branch.add(Text(arm.why, style="dim"))
    for statement in arm.statements:
        node = branch.add(Text(statement.purpose))
        node.add(Syntax(statement.sql, "sql", background_color="default", word_wrap=True))
        steps = node.add(Text("plan", style="dim"))
        for step in statement.plan:
            line = Text("  " * step.depth + step.detail)
            if step.verdict:
                line.append(f"  {step.verdict}", style="green")
            steps.add(line)
    if arm.front:
        branch.add(Text("front: " + _front(arm)))
    for inner in arm.inner:
        _grow(branch, "within a value: ", inner)


def _name(arm: Arm) -> str:
    over = " and ".join(arm.filters) or "everything"
    return f"{arm.order} over {over}" + (f", while {' and '.join(arm.gates)}" if arm.gates else "")


def _front(arm: Arm) -> str:
    return ", ".join(f"{name} {'-' if value is None else value}" for name, value in arm.front.items()) or "-"
