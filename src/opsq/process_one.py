"""Owns what process 1 of a container has to do besides its work: reap what ends, and pass on what it is told.

The work is done in a child, which must not notice.
"""

from __future__ import annotations

import os
import signal
import sys

is_child = False
"""Whether the parent of this process is process 1, by `go_on_in_a_child`."""
_PASSED_ON = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}


def go_on_in_a_child() -> None:
    """Fork: the child returns, and the parent ends with its exit status once it has ended.

    Orphans of the container become children of process 1, and stay as zombies unless it reaps them.
    """
    global is_child  # noqa: PLW0603  # a fact of the process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        is_child = True
        return
    while sys.platform != "darwin":  # where there is no process 1 but launchd
        told = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if told.si_signo == signal.SIGCHLD:
            _reap(child)
        elif told.si_code <= 0:  # a process sent it; what a terminal sends, the child gets too
            os.kill(child, told.si_signo)


def _reap(child: int) -> None:
    """Reap all that have ended; if the child is among them, end as it did."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
