"""Owns other users for tests that root runs: who they are, and code or programs that run as one of them.

It must not make accounts: the system takes any number for a user.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from needs import lack

_FIRST = 20_000 + os.getpid() % 10_000 * 4
"""Others than those of tests that run at the same time: the number of a user is in the path of a short socket."""
ALICE, BOB, EVE = _FIRST, _FIRST + 1, _FIRST + 2
"""Users who may be anybody, each in a group of the same number."""
WORKERS = _FIRST + 3
"""A group of Alice and Bob."""
_VERSION = f"python3.{sys.version_info.minor}"
PATH = os.pathsep.join(path for path in sys.path if path.endswith(("/src", "/site-packages")))
"""Where opsq and what it needs are found."""


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """This process, with the rights of a user and no others; a test that is not run by root is skipped."""
    need_root()
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def need_root() -> None:
    """Skip a test that needs several users, unless root runs it."""
    if os.geteuid() != 0:
        lack("root, who alone can act as several users: sudo make test, or a container")


def run_as(
    uid: int, state_dir: Path, *words: str, stdin: bytes = b"", code: str = "", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line of opsq, or `code`, as a user: in the root folder, with an empty environment otherwise."""
    python = need_users()
    return subprocess.run(
        [python, "-P", *(["-c", code] if code else ["-m", "opsq"]), *words],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": PATH, "OPSQ_STATE_DIR": str(state_dir), **environ},
        cwd="/",
        input=stdin,
        capture_output=True,
        check=False,
        user=uid,
        group=uid,
        extra_groups=[WORKERS] if uid in {ALICE, BOB} else [],
    )


def need_users() -> str:
    """Skip a test that runs opsq as several users, unless root runs it, with a Python that others may run too."""
    need_root()
    python = python_of_all()
    if python is None:
        lack(f"{_VERSION} for every user: those in {sys.prefix} may not run it there; put the clone below /opt or /tmp")
    return python


@cache
def python_of_all() -> str | None:
    """A Python like this one that any user can run with what is installed here; None if there is none."""
    for python in (sys.executable, *(f"{folder}/{_VERSION}" for folder in ("/usr/bin", "/usr/local/bin"))):
        command = [python, "-P", "-c", "import opsq.daemon.daemon_process, apsw, uvloop"]
        with contextlib.suppress(OSError):
            environ = {"PYTHONPATH": PATH}
            done = subprocess.run(command, env=environ, cwd="/", user=ALICE, group=ALICE, extra_groups=[], check=False)
            if done.returncode == 0:
                return python
    return None
