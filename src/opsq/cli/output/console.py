"""The terminal as rich draws on it, with whatever does not print escaped, wherever the text comes from.

This file must not decide what is drawn; it loads rich, so only what draws may import it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from opsq.printable import printable


class SafeConsole(Console):
    """A console whose text is `printable`; only what rich itself draws moves the cursor or has colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, none of which has a control character in its text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n\t"), segment.style)
