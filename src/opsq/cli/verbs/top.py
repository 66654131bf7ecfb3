"""The verb top: everything that an operator wants to see, on one screen that follows it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from opsq.cli.caller import Caller
from opsq.cli.output.top_view import ORDERS, STATES, Sight, TopView, TopWatch
from opsq.documents.daemon import StatusDocument, TopDocument
from opsq.documents.submissions import EventShape
from opsq.errors import OpsqError, TimedOut, Unreachable
from opsq.options import values
from opsq.options.option import duration, option

if TYPE_CHECKING:
    from rich.text import Text

    from opsq.cli.output.top_screen import LiveScreen
    from opsq.client.sync.connection import Connection
    from opsq.wire.messages import Request

R = TypeVar("R")

_REST = 20
"""Between two looks pass so many times the time that one has taken, so that a busy daemon is not asked too often."""
_PATIENCE_S = 5.0


def top(
    caller: Caller,
    metadata: list[str] = option("-m, --metadata KEY=VALUE...", "Only chunks of submissions with this metadata."),
    interval_s: float = option("--interval D", "How often the screen refreshes.", duration, 1.0),
) -> None:
    """Follow the queue on one screen: backlog, rate, what is blocked, what runs where, consumers, latest failures.

    Off a terminal it prints all this once. Keys: q quits, space pauses, / and m filter by text and metadata, s shows
    the chunks of one state, o orders those that run.
    """
    sight = Sight(metadata=values.metadata(metadata))
    watch, daemon = TopWatch(), caller.connect()
    if caller.is_rich:
        _Top(caller, watch, daemon, sight, max(interval_s, 0.1)).run()
        return
    with daemon:
        view = watch.look(daemon, sight)
    if caller.is_json:
        caller.document(_document(caller, view))
    else:
        from opsq.cli.output.top_frame import frame

        caller.drawn().console.print(frame(caller, view, sight))


def _document(caller: Caller, view: TopView) -> TopDocument:
    return TopDocument(
        StatusDocument.from_state(view.state, caller.target, caller.target_source),
        view.running,
        view.has_more_running,
        [EventShape.from_event(event, {}) for event in view.failures],
    )


class _Patient:
    """A connection that asks questions, but waits only so long for an answer."""

    def __init__(self, daemon: Connection) -> None:
        self._daemon = daemon
        self.next_id = daemon.next_id

    def call(self, request: Request, kind: type[R]) -> R:
        return self._daemon.call(request, kind, _PATIENCE_S)


class _Top:
    """The screen as it follows the daemon, and what the keys do to it."""

    def __init__(self, caller: Caller, watch: TopWatch, daemon: Connection, sight: Sight, pause_s: float) -> None:
        self._caller = caller
        self._watch = watch
        self._daemon: Connection | None = daemon
        self._sight = sight
        self._pause_s = pause_s
        self._view = watch.look(daemon, sight)
        self._look_at = 0.0
        self._lost_at: float | None = None
        self._is_paused = False
        self._asks = ""
        """What is being typed: text or metadata."""
        self._typed = ""
        self._complaint = ""

    def run(self) -> None:
        """Follow until `q`, or a signal."""
        from opsq.cli.output.top_screen import LiveScreen

        self._caller.is_drawing = True
        try:
            with LiveScreen(self._caller.console) as screen:
                while not screen.has_ended and self._turn(screen):
                    pass
        finally:
            if self._daemon is not None:
                self._daemon.close()

    def _turn(self, screen: LiveScreen) -> bool:
        from opsq.cli.output.top_frame import frame

        now = time.monotonic()
        if now >= self._look_at and not self._is_paused:
            self._look()
            now = time.monotonic()
        footer, trouble = self._footer(), self._trouble(now)
        screen.draw(frame(self._caller, self._view, self._sight, height=screen.height, footer=footer, trouble=trouble))
        for key in screen.keys(1.0 if self._is_paused else self._look_at - now):
            if not self._press(key):
                return False
        return not screen.has_ended

    def _look(self) -> None:
        began = time.monotonic()
        try:
            if self._daemon is None:
                self._daemon = self._caller.connect()
            self._view = self._watch.look(_Patient(self._daemon), self._sight)
            self._lost_at = None
        except (Unreachable, TimedOut):
            if self._daemon is not None:
                self._daemon.close()
            self._daemon = None
            self._lost_at = self._lost_at or began
        now = time.monotonic()
        self._look_at = now + max(self._pause_s, _REST * (now - began))

    def _trouble(self, now: float) -> str:
        if self._complaint or self._lost_at is None:
            return self._complaint
        return f"No daemon answers, for {now - self._lost_at:.0f} s now; this is what the last one said."

    def _footer(self) -> Text:
        from opsq.cli.output.top_frame import footer

        typed = self._typed if self._asks else None
        return footer(self._sight, is_paused=self._is_paused, typed=typed, asks=self._asks)

    def _press(self, key: str) -> bool:
        """Do what a key means; False: end."""
        self._complaint = ""
        if self._asks:
            self._type(key)
            return True
        self._look_at = 0.0
        if key == " ":
            self._is_paused = not self._is_paused
        elif key in {"/", "m"}:
            self._asks, self._typed = ("text", self._sight.text) if key == "/" else ("metadata", "")
        elif key == "s":
            self._sight.state = STATES[(STATES.index(self._sight.state) + 1) % len(STATES)]
        elif key == "o":
            names = list(ORDERS)
            self._sight.order = names[(names.index(self._sight.order) + 1) % len(names)]
        return key != "q"

    def _type(self, key: str) -> None:
        if key in "\r\n":
            asks, self._asks = self._asks, ""
            self._look_at = 0.0
            if asks == "text":
                self._sight.text = self._typed
                return
            try:
                self._sight.metadata = values.metadata(self._typed.split())
            except OpsqError as error:
                self._complaint = error.message
        elif key in "\x7f\b":
            self._typed = self._typed[:-1]
        elif key == "\x1b":
            self._asks = ""
        elif key.isprintable():
            self._typed += key
