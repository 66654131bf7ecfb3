"""Missed heartbeats: when the daemon gives up on a connection from which nothing comes.

It must not close a connection; `Session.check` does. What that means for chunks is decided in `queue/chunks/expiry`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from opsq.daemon.session import Session
from opsq.settings import Settings

_CLOSED_AT_ONCE = 50
"""Others are served in between: each takes about 0.1 ms if replies wait that its peer has not read."""

_log = logging.getLogger(__name__)


class Heartbeats:
    """The silence that a connection may keep: `heartbeat_misses` times `heartbeat_s`."""

    def __init__(self, settings: Settings, now_ns: int) -> None:
        self._heartbeat_s = settings.heartbeat_s
        self._heartbeat_ns = int(settings.heartbeat_s * 1e9)
        self._silence_ns = self._heartbeat_ns * settings.heartbeat_misses
        self._checked_ns = now_ns
        self._patient_until_ns = 0

    def note_delay(self, late_s: float, now_ns: int) -> None:
        """Be patient after a tick that came late: a suspended process has not yet read what peers sent."""
        if late_s > self._heartbeat_s / 2:
            _log.warning(
                "the process was suspended for %.1f s; nothing expires for the next %g s", late_s, self._heartbeat_s
            )
            self._patient_until_ns = now_ns + self._heartbeat_ns

    def check(self, sessions: Iterable[Session], now_ns: int) -> None:
        """Have connections that missed their heartbeats closed; looks four times per heartbeat."""
        if now_ns < self._patient_until_ns or now_ns - self._checked_ns < self._heartbeat_ns // 4:
            return
        self._checked_ns = now_ns
        self._check(list(sessions), now_ns)

    def _check(self, sessions: list[Session], now_ns: int) -> None:
        closed_count = 0
        while sessions and closed_count < _CLOSED_AT_ONCE:
            closed_count += sessions.pop().check(now_ns, self._silence_ns)
        if sessions:
            asyncio.get_running_loop().call_soon(self._check, sessions, now_ns)
