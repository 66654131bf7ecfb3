"""How a daemon was started, with which options and variables and by whom, so that `opsq restart` does the same.

This file owns `opsq.options` of a state folder. Settings of files are not in it: a restart reads the files again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from opsq import process_one
from opsq.daemon.lifecycle import is_locked
from opsq.errors import OpsqError
from opsq.private_file import changing
from opsq.settings import SETTINGS, Settings

_NAME = "opsq.options"
_GIVEN = ("--", "OPSQ_")
"""How the source of a setting begins that no file gives."""
_KEPT = frozenset(setting.name for setting in SETTINGS if setting.name != "state_dir" and not setting.is_clients)
"""Settings of the daemon, but for the one that says which it is."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a daemon leaves about its start."""

    options: dict[str, str] = {}
    """By setting."""
    restart_command: str = ""
    """What has the service manager restart it; empty: none has started it."""


def note_start(settings: Settings, tcp_name: str = "") -> None:
    """Write down how this daemon was started; it owns the state folder.

    Args:
        settings: of its start.
        tcp_name: where it listens on TCP. A port that the system has chosen is kept: clients look for it there.
    """
    texts = settings.texts()
    given = {name: text for name, text in texts.items() if name in _KEPT and settings.source(name).startswith(_GIVEN)}
    if given.get("listen", "").endswith(":0") and tcp_name:
        given["listen"] = given["listen"].removesuffix("0") + tcp_name.rpartition(":")[2]
    note = Note(given, _restart_command())
    path = f"{settings.state_dir}/{_NAME}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if note != Note():
        with contextlib.suppress(OpsqError), changing(path) as replace:  # on a full disk the daemon starts all the same
            replace(msgspec.json.encode(note))


def start_in_use(settings: Settings) -> Note:
    """How the daemon that runs was started; an empty note if none runs or it left none.

    Args:
        settings: name the state folder.
    """
    with contextlib.suppress(OSError, OpsqError, msgspec.DecodeError):
        if is_locked(settings.lock_path):
            with open(f"{settings.state_dir}/{_NAME}", "rb") as file:
                return msgspec.json.decode(file.read(), type=Note)
    return Note()


def _restart_command() -> str:
    """What restarts this process if a service manager itself has started it, as systemd.exec(5) says; else nothing."""
    if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
        place = ""
        with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
            place = file.read().rpartition(":")[2].strip()
        user = "--user " if "/user@" in place else ""
        unit = place.rpartition("/")[2]
        return f"systemctl {user}restart {unit if unit.endswith('.service') else 'UNIT'}"
    label = os.environ.get("XPC_SERVICE_NAME", "0")  # launchd's; "0" in a terminal
    if label != "0" and os.getppid() == 1:
        return f"launchctl kickstart -k {'system' if os.getuid() == 0 else f'gui/{os.getuid()}'}/{label}"
    return "podman restart CONTAINER, outside of it" if process_one.is_child else ""
