"""How `opsq explain` looks on a terminal: trees, SQL with its words set off, verdicts in colour. It decides nothing.

Colours are from the terminal's own palette and readable on dark and on light; no information is in a colour alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from opsq.cli.output.rows import Rows
from opsq.documents.strategy_text import analysis_texts, arm_name, front_text
from opsq.documents.submission_text import nth, pairs_text
from opsq.strategy import explain as strategies
from opsq.strategy.text import parse
from opsq.wire.messages import Arm, Explained, PlanStep, Statement

if TYPE_CHECKING:
    from rich.console import Console

_GOOD = frozenset({"next", "reserved", "completed"})
_WAITING = frozenset(
    {"behind", "delayed", "scheduled", "blocked", "limited", "gated", "ending", "draining", "skipped", "cancelled"}
)
_CLAUSES = re.compile(r" (?=(?:FROM|WHERE|AND|ORDER BY|LIMIT)\b)")
_WORDS = re.compile(
    r"\b(SELECT|FROM|WHERE|AND|NOT|EXISTS|JOIN|ON|ORDER BY|DESC|LIMIT|AS)\b|(\?[0-9]+)",
)


def draw_strategy(console: Console, reply: Explained) -> None:
    """Draw how a strategy is served."""
    console.print(Text(reply.strategy, style="bold"))
    console.print()
    console.print(_outline(reply.strategy))
    seen: dict[str, int] = {}
    for number, arm in enumerate(reply.arms, 1):
        console.print()
        tree = Tree(_title(f"Arm {number}", arm), guide_style="dim")
        _grow(tree, arm, number, seen)
        console.print(tree)
    if reply.offers:
        console.print()
        console.print(_offers(reply))
    console.print()
    console.print(_bullets([Text(note) for note in reply.notes]))


def draw_work(console: Console, verdict: str, reasons: Sequence[str]) -> None:
    """Draw why work is not running."""
    style = "bold" if verdict in _GOOD else "bold magenta" if verdict in _WAITING else "bold red"
    headline, *facts = reasons
    head = Table.grid(padding=(0, 2))
    head.add_column(no_wrap=True)
    head.add_row(Text(f"● {verdict.replace('_', ' ')}", style), Text(headline, "bold"))
    console.print(head)
    console.print(Padding(_bullets([_marked(fact) for fact in facts]), (0, 0, 0, 2)))


def _outline(strategy: str) -> Tree:
    stack: list[Tree] = []
    for depth, node, rule in strategies.outline(parse(strategy)):
        label = Text.assemble((node, "bold"), "  ", (rule, "italic"))
        tree = stack[depth - 1].add(label) if depth else Tree(label, guide_style="dim")
        stack[depth:] = [tree]
    return stack[0]


def _title(name: str, arm: Arm) -> Text:
    return Text.assemble((f"{name}  ", "bold magenta"), (arm_name(arm), "bold"))


def _grow(branch: Tree, arm: Arm, number: int, seen: dict[str, int], depth: int = 0) -> None:
    branch.add(Text(arm.why, style="italic"))
    for statement in arm.statements:
        first = seen.setdefault(statement.sql, number)
        if first != number:
            branch.add(Text.assemble((f"{statement.purpose}  ", "bold"), f"as in arm {first}"))
        else:
            _grow_statement(branch.add(Text(statement.purpose, style="bold")), statement)
    if depth == 0:
        branch.add(Text.assemble(("front  ", "bold"), front_text(arm)))
    found = dict(analysis_texts(arm))
    if found:
        node = branch.add(Text.assemble(("dry run  ", "bold"), (found.pop("dry run"), "magenta")))
        grid = Table.grid(padding=(0, 2))
        for name, text in found.items():
            grid.add_row(Text(name), Text(text))
        node.add(grid)
    for inner in arm.inner:
        _grow(branch.add(_title("Within a value", inner)), inner, number, seen, depth + 1)


def _grow_statement(node: Tree, statement: Statement) -> None:
    node.add(sql_text(statement.sql))
    stack: list[Tree] = []
    for step in statement.plan:
        parent = stack[step.depth - 1] if step.depth else node
        stack[step.depth :] = [parent.add(_step(step))]


def _step(step: PlanStep) -> Text:
    is_bad = re.match(r"SCAN|USE TEMP B-TREE|MATERIALIZE", step.detail) is not None
    text = Text(step.detail)
    if step.verdict:
        text.append(f"\n{'✗' if is_bad else '✓'} {step.verdict}", style="red" if is_bad else "")
    return text


def sql_text(sql: str) -> Text:
    """A statement, a clause a line, with its words and parameters set off."""
    inside = 0
    clauses: list[str] = []
    for piece in _CLAUSES.split(sql):
        clauses.append(piece if not clauses else (" " if inside else "\n") + piece)
        inside += piece.count("(") - piece.count(")")
    text = Text("".join(clauses))
    for match in _WORDS.finditer(text.plain):
        text.stylize("bold" if match[1] else "magenta", match.start(), match.end())
    return text


def _offers(reply: Explained) -> Rows:
    table = Rows(("", "chunk", "attempt", "arm", "metadata"), title="First offers", right=("", "attempt", "arm"))
    for number, offer in enumerate(reply.offers, 1):
        chunk = f"{offer.submission_id}/{offer.index}"
        table.add_row(str(number), chunk, str(nth(offer.attempt)), str(offer.arm), Text(pairs_text(offer.metadata)))
    return table


def _bullets(texts: list[Text]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for text in texts:
        grid.add_row(Text("·", style="dim"), text)
    return grid


def _marked(fact: str) -> Text:
    """A fact with the commands in it set off."""
    text = Text(fact)
    for match in re.finditer(r"`[^`]+`", fact):
        text.stylize("bold", match.start(), match.end())
    return text
