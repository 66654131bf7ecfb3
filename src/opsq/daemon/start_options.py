"""What a daemon was started with, options and variables, so that `opsq restart` starts it with the same.

This file owns `opsq.options` of a state folder. Settings of files are not in it: a restart reads the files again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from opsq.daemon.lifecycle import is_locked
from opsq.errors import OpsqError
from opsq.private_file import changing
from opsq.settings import Settings

_NAME = "opsq.options"
_GIVEN = ("--", "OPSQ_")
"""How the source of a setting begins that no file gives."""
_OF_CLIENTS = frozenset({"state_dir", "address", "client_token_file"})
"""Settings that only say how to find the daemon."""


def note_options(settings: Settings) -> None:
    """Write down what this daemon was started with; it owns the state folder."""
    texts = settings.texts()
    given = {
        name: text
        for name, text in texts.items()
        if name not in _OF_CLIENTS and settings.source(name).startswith(_GIVEN)
    }
    path = f"{settings.state_dir}/{_NAME}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if given:
        with contextlib.suppress(OpsqError), changing(path) as replace:  # on a full disk the daemon starts all the same
            replace(msgspec.json.encode(given))


def options_in_use(settings: Settings) -> dict[str, str]:
    """What the daemon that runs was started with, by setting; empty if none runs or it left no note.

    Args:
        settings: name the state folder.
    """
    with contextlib.suppress(OSError, OpsqError, msgspec.DecodeError):
        if is_locked(settings.lock_path):
            with open(f"{settings.state_dir}/{_NAME}", "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, str])
    return {}
