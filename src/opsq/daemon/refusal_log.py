"""Logs refused connections without letting their causes fill the log.

This file must not decide what is refused.
"""

from __future__ import annotations

import logging
import time

_WINDOW_S = 60.0

_log = logging.getLogger(__name__)


class RefusalLog:
    """The first refusal of each kind is logged at once; how many followed it, once a minute."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}
        """Kind → when its minute began, and how many came in it that were not logged."""

    def note(self, kind: str, text: str) -> None:
        """Log a refusal, or count it; there must be few kinds, such as the codes of errors."""
        if kind in self._kinds:
            began, count = self._kinds[kind]
            self._kinds[kind] = (began, count + 1)
        else:
            _log.info("%s", text)
            self._kinds[kind] = (time.monotonic(), 0)

    def tick(self) -> None:
        """Log what came in minutes that are over."""
        for kind, (began, count) in list(self._kinds.items()):
            past_s = time.monotonic() - began
            if past_s < _WINDOW_S:
                continue
            del self._kinds[kind]
            if count:
                _log.info("%d more connections were closed with %s in %.0f s", count, kind, past_s)
                self._kinds[kind] = (time.monotonic(), 0)
