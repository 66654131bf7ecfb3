"""Waiting for a rival's server: connect to its socket as soon as it listens.

It starts and stops nothing.
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

_DEADLINE_S = 10.0
_RETRY_S = 0.01


def connect_when_ready(path: Path, server: subprocess.Popen[bytes]) -> socket.socket:
    """Connect to the Unix socket `path` that the process `server` is about to listen on.

    Raises:
        RuntimeError: the process ended, or did not listen within 10 s.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nothing answers on {path} (exit status {server.poll()}): {error}") from error
            time.sleep(_RETRY_S)
        else:
            return connection
