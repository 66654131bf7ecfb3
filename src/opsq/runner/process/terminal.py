"""The terminal of this process, lent to one program at a time: its process group is in the foreground until it ends.

This file must not start, stop or wait for programs.
"""

from __future__ import annotations

import os
import signal
import termios
from contextlib import suppress

from opsq.errors import UsageError


class Terminal:
    """The controlling terminal.

    Raises:
        UsageError: there is none.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise UsageError(
                "--tty: there is no terminal that programs could use.",
                hint="Leave it out; in scripts, `script -qec` makes a terminal.",
            ) from error
        self._modes = termios.tcgetattr(self._fd)

    def lend(self, group_id: int) -> None:
        """Put a process group in the foreground, if we are there ourselves."""
        with suppress(OSError):  # it has ended, or the terminal is gone
            if os.tcgetpgrp(self._fd) == os.getpgrp():
                os.tcsetpgrp(self._fd, group_id)
                os.killpg(group_id, signal.SIGCONT)  # it may have wanted the terminal before it had it

    def take_back(self, group_id: int) -> None:
        """Be in the foreground again, if that group was there, with the terminal in the modes that it had at first."""
        # Who is not in the foreground is stopped for this by SIGTTOU.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._fd) == group_id:
                os.tcsetpgrp(self._fd, os.getpgrp())
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._modes)
        except (OSError, termios.error):
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
