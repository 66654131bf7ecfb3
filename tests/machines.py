"""Owns whole machines for tests that root runs on Linux: systemd as process 1, or what a container has for that.

They must not change the machine that they run on: what they see of it they can only read (`machine.sh`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from needs import lack, need
from users import PATH, need_root
from waiting import wait_until

SYSTEMD = "/lib/systemd/systemd"
_BOOT = r"""
for name in default sysinit basic sockets multi-user shutdown; do
    printf '[Unit]\nDescription=%s\nAllowIsolate=yes\n' "$name" > "/etc/systemd/system/$name.target"
done
export container=opsq SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_GENERATOR_PATH=/none
exec /lib/systemd/systemd --system --log-target=null
"""
"""Without the units of a distribution, which would set the clock and the kernel, and clean up."""
_NAMESPACES = ["--mount", "--pid", "--ipc", "--uts", "--net", "--fork", "--kill-child"]


class Machine:
    """A machine that runs.

    Attributes:
        init: its process 1, as this machine numbers it.
        process: ends with it, with its exit status.
    """

    def __init__(self, init: int, process: subprocess.Popen[str]) -> None:
        self.init = init
        self.process = process

    def run(self, script: str, user: str = "root", stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a shell script in it as one of its users."""
        groups = "--clear-groups" if user.isdigit() else "--init-groups"
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", groups] if user != "root" else []
        environ = ["env", "-i", "--chdir=/", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        words = ["nsenter", "--all", f"--target={self.init}", *environ, *who, "sh", "-ec", script]
        return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=180)

    def ok(self, script: str, user: str = "root", stdin: str = "") -> str:
        """What a script says that must end well."""
        done = self.run(script, user, stdin)
        assert done.returncode == 0, (script, done)
        return done.stdout.strip()


@contextlib.contextmanager
def machine(folder: Path, *program: str, cgroup: str = "") -> Iterator[Machine]:
    """A machine on which nothing is made yet but `opsq` and `/usr`; it is gone afterwards.

    Args:
        folder: empty; nothing is written to it.
        program: its process 1.
        cgroup: the name of a control group for it; empty: it has none.
    """
    need_root()
    need("unshare")
    _need_namespaces()
    script = Path(__file__).with_name("machine.sh")
    words = ["sh", str(script), str(folder), sys.base_prefix, PATH, cgroup, *program]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(["unshare", *_NAMESPACES, *words], text=True, **pipes)
    init = 0
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "made\n", process.communicate()[1]
        init = _child_of(process.pid)
        yield Machine(init, process)
    finally:
        if process.poll() is None:
            os.kill(init or process.pid, signal.SIGKILL)  # and all of the machine with it
        process.communicate(timeout=60)
        if cgroup:
            _remove_group(cgroup)


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """A machine with systemd, which knows the units in its /etc/systemd/system and no others."""
    if not os.path.exists(SYSTEMD):
        lack("systemd: apt install systemd")
    with machine(folder, "sh", "-ec", _BOOT, cgroup=f"opsq-test-{os.getpid()}") as made:
        made.ok("until systemctl is-system-running >/dev/null 2>&1; do sleep 0.1; done")
        yield made


def _need_namespaces() -> None:
    tried = subprocess.run(["unshare", *_NAMESPACES, "--mount-proc", "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        # Not `lack`, which fails in CI: a container has this right or not, and nothing that CI could install gives it.
        pytest.skip(f"namespaces, which this machine does not let root make: {tried.stderr.strip()}")


def _child_of(pid: int) -> int:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, check=True)
    return int(found.stdout)


def _remove_group(name: str) -> None:
    found = subprocess.run(["findmnt", "-n", "-t", "cgroup2", "-o", "TARGET"], capture_output=True, text=True)
    for mounted in found.stdout.split()[:1]:
        for folder, _, _ in os.walk(f"{mounted}/{name}", topdown=False):
            wait_until(partial(_is_removed, folder), 60, f"{folder} is empty")


def _is_removed(folder: str) -> bool:
    with contextlib.suppress(OSError):  # what was in it is still ending
        os.rmdir(folder)
    return not os.path.exists(folder)
