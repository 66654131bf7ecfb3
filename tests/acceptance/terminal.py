"""A terminal of a size, with the program in front of it: what is drawn, what is typed, what is left behind.

It must not know what the program is.
"""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import threading

import pyte

from acceptance.starter import PROGRAM
from waiting import wait_until

DEADLINE_S = 180.0


class Terminal:
    """`opsq` in a session of its own, whose terminal this is.

    Attributes:
        screen: as it looks now.
        drawn: all that was written to it.
        pid: of the program.
    """

    def __init__(self, queue, *words, columns=80, rows=24, program=PROGRAM):
        environ = queue.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        size = struct.pack("HHHH", rows, columns, 0, 0)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.chdir(queue.folder)
            os.execve(program, [program, *words], environ)
        self.status = None
        self.modes = termios.tcgetattr(self._master)
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self._is_hung_up = False
        self.drawn = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while not self._is_hung_up:
                if not select.select([self._master], [], [], 0.1)[0]:
                    continue
                piece = os.read(self._master, 1 << 16)
                if not piece:
                    return
                with self._lock:
                    self.drawn += piece
                    self._stream.feed(piece)

    @property
    def lines(self):
        """The lines of the screen, without the blanks behind them."""
        with self._lock:
            return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def type(self, keys):
        os.write(self._master, keys.encode())

    def resize(self, columns, rows):
        """Make it another size, which the program is told by SIGWINCH."""
        with self._lock:
            self.screen.resize(rows, columns)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait(self, *texts):
        """Wait until all these are on the screen."""
        wait_until(lambda: all(text in self.text for text in texts), DEADLINE_S, f"{texts} is on the screen")

    def wait_until(self, condition, what):
        wait_until(condition, DEADLINE_S, what)

    def ended(self):
        """Wait for the end of the program; its status, or the signal that has ended it as a negative number."""
        self.wait_until(self._has_ended, "the program has ended")
        self._reader.join(DEADLINE_S)  # it ends once all that the program wrote has been read
        return os.waitstatus_to_exitcode(self.status)

    def _has_ended(self):
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    @property
    def is_restored(self):
        """Whether the modes are those of the beginning, the cursor is shown, and the screen is the usual one."""
        is_usual = self.drawn.rfind(b"\x1b[?1049l") >= self.drawn.rfind(b"\x1b[?1049h")
        is_shown = self.drawn.rfind(b"\x1b[?25h") >= self.drawn.rfind(b"\x1b[?25l")
        return termios.tcgetattr(self._master) == self.modes and is_usual and is_shown

    def hang_up(self):
        """Close our end, as a connection that breaks does."""
        self._is_hung_up = True
        self._reader.join(DEADLINE_S)
        os.close(self._master)

    def close(self):
        print(self.text)  # shown with the failure
        if not self._has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if not self._is_hung_up:
            self.hang_up()
