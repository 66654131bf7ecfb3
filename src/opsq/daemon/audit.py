"""Notes what operators do, and has it written to the file of the audit (`audit_file`) before it is acknowledged.

This file must not decide who may do what (`wire.roles` does), nor have the event loop wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from opsq.daemon.audit_file import Act, append
from opsq.users import user_name
from opsq.wire import messages as m

AUDITED: frozenset[type[m.Message]] = frozenset(
    (
        *(m.Pause, m.Resume, m.Limit, m.Unlimit, m.Weight, m.PutRules),
        *(m.Cancel, m.Remove, m.Requeue, m.Drop),
        *(m.ReleaseConsumer, m.Prune, m.Drain, m.Stop, m.Backup, m.Vacuum, m.Check),
        *(m.CommitMove, m.ActivateMoved, m.GiveUpMoved, m.GiveUpSource),
    )
)
"""Requests that change what others get, or the daemon; each is an act, whatever role it needs."""

_WHAT_CHARACTERS = 1000

_log = logging.getLogger(__name__)


class _Noted(NamedTuple):
    """An act as it was noted; it is put into words by the thread that writes it."""

    at: int
    who: str | int | None
    origin: str
    connection: str
    request: m.Request


class Audit:
    """The file, to which the daemon appends; one thread of its own does so, for all acts that have come together."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._noted: list[_Noted] = []
        self._thread = ThreadPoolExecutor(1, "opsq-audit")
        self._writing = asyncio.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether an act was noted that is not in the file yet."""
        return bool(self._noted) or self._writing.locked()

    def note(self, who: str | int | None, origin: str, connection: str, request: m.Request) -> None:
        """Note an act that was accepted; `catch_up` writes it.

        Args:
            who: a token, or the id of a user of this machine.
            origin: where the connection comes from.
            connection: its name.
            request: the act.
        """
        self._noted.append(_Noted(time.time_ns() // 1_000_000, who, origin, connection, request))

    async def catch_up(self) -> None:
        """Return when all acts noted until now are in the log and, durably, in the file.

        An act for which there is no room in the file stands in the log only.
        """
        async with self._writing:
            if self._noted:
                noted, self._noted = self._noted, []
                await asyncio.get_running_loop().run_in_executor(self._thread, self._write, noted)

    def _write(self, noted: list[_Noted]) -> None:
        try:
            found = [_act(one) for one in noted]
            for act in found:
                _log.info("%s from %s (%s): %s %s", act.who, act.origin, act.connection, act.act, act.what)
            append(self._path, found)
        except Exception as error:  # noqa: BLE001  # whatever it is, replies must not wait for ever
            _log.error("the audit cannot be written: %s", error)


def _act(noted: _Noted) -> Act:
    kind = type(noted.request)
    defaults = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    given = {name: getattr(noted.request, name) for name in kind.__struct_fields__ if name != "id"}
    shown = {name: value for name, value in given.items() if value != defaults.get(name, ...)}
    what = ", ".join(
        f"{name}={value.hex() if isinstance(value, bytes) else repr(value)}" for name, value in shown.items()
    )
    who = noted.who
    if not isinstance(who, str):
        who = "user unknown" if who is None else f"user {user_name(who)}"
    return Act(noted.at, who, noted.origin, noted.connection, kind.__name__, what[:_WHAT_CHARACTERS])


def _shown(value: object) -> str:
    """A value as it is read; bytes, which are identities, as hexadecimal digits, as `opsq status` has them."""
    return value.hex() if isinstance(value, bytes) else repr(value)
