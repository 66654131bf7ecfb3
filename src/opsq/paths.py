"""Where opsq keeps its files: the folders of a user and of root, and the path of the socket.

It must not read settings, nor create anything. Client and daemon compute the socket path here, alike.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal

from opsq.errors import UsageError

SOCKET_PATH_LIMIT_BYTES = 103 if sys.platform == "darwin" else 107
"""The longest path of a Unix socket: `sun_path` has 104 bytes on macOS and 108 on Linux, one for a closing NUL."""

ROOT_STATE_DIR = "/var/lib/opsq"
_SHORT_FOLDERS = "/tmp/opsq-"  # noqa: S108  # daemon and client check whose it is
_SHORT_NAME_COUNT = len("0123456789abcdef.sock")


def user_folder(kind: Literal["config", "state"], environ: Mapping[str, str]) -> tuple[str, str]:
    """The folder of this user for settings or state, and what determined it; empty if the user has no home."""
    variable = f"XDG_{kind.upper()}_HOME"
    if environ.get(variable, "").startswith("/"):  # the XDG rules: a relative path is to be ignored
        return f"{environ[variable].rstrip('/')}/opsq", variable
    home = environ.get("HOME", "")
    if sys.platform == "linux" and home.startswith("/"):  # what platformdirs finds there, without loading it
        return f"{home.rstrip('/')}/{'.config' if kind == 'config' else '.local/state'}/opsq", "HOME"
    import platformdirs  # not at the top: it takes a hot verb longer than all of the settings

    try:
        folder: str = getattr(platformdirs.PlatformDirs("opsq"), f"user_{kind}_dir")
    except RuntimeError:
        return "", ""
    return folder, "HOME" if environ.get("HOME") else "password database"


def default_state_dir(environ: Mapping[str, str]) -> tuple[str, str]:
    """The state folder where none is set, and what determined it.

    Raises:
        UsageError: this user has no home.
    """
    if os.geteuid() == 0 and not environ.get("XDG_STATE_HOME", "").startswith("/"):
        return ROOT_STATE_DIR, "default for root"
    folder, source = user_folder("state", environ)
    if folder:
        return folder, source
    raise UsageError(
        f"No state folder can be determined: HOME is unset, and user {os.geteuid()} is not in the password database.",
        hint="Set one of --state-dir, OPSQ_STATE_DIR, HOME.",
    )


def socket_of(state_dir: str, source: str) -> tuple[str, str]:
    """The socket of a state folder: in it, or where its path would be too long in a folder of its owner under /tmp."""
    path = f"{state_dir}/opsq.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT_BYTES:
        return path, f"state_dir ({source})"
    import hashlib

    try:
        owner = os.stat(state_dir).st_uid
    except OSError:
        owner = os.geteuid()
    name = hashlib.sha256(os.fsencode(os.path.realpath(state_dir))).hexdigest()[:16]
    path = f"{_SHORT_FOLDERS}{owner}/{name}.sock"
    return path, f"state_dir ({source}), whose own path is too long for a socket"


def short_socket_owner(path: str) -> int | None:
    """Who must own the folder of a socket that `socket_of` put under /tmp, by its name; None for any other socket."""
    folder, _, name = path.rpartition("/")
    owner = folder.removeprefix(_SHORT_FOLDERS)
    is_short = owner != folder and owner.isascii() and owner.isdigit() and len(name) == _SHORT_NAME_COUNT
    return int(owner) if is_short and name.endswith(".sock") else None
