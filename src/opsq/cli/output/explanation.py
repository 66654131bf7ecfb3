"""Prints an explanation: drawn on a terminal by `explain_drawing`, in a pipe in the lines of `strategy_text`.

It must not word anything.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.documents.strategy_text import strategy_lines
from opsq.wire.messages import Explained, WorkExplained


def print_strategy(caller: Caller, reply: Explained) -> None:
    """Print how a strategy is served."""
    if caller.is_rich:
        from opsq.cli.output.explain_drawing import draw_strategy

        draw_strategy(caller.console, reply)
    else:
        caller.lines(strategy_lines(reply))


def print_work(caller: Caller, reply: WorkExplained) -> None:
    """Print why work is not running."""
    if caller.is_rich:
        from opsq.cli.output.explain_drawing import draw_work

        draw_work(caller.console, reply.verdict, [caller.reworded(reason) for reason in reply.reasons])
    else:
        headline, *facts = reply.reasons
        caller.lines([f"{reply.verdict}: {headline}", *(f"  {fact}" for fact in facts)])
