"""Finds a command and turns it into a process with three streams and nothing else of ours.

This file must not wait for a process, nor move its bytes.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import Any

from opsq.errors import CommandNotExecutable, CommandNotFound, Refused

RESTORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores for itself and a program expects to die of. What our caller ignores, as nohup does, stays so."""

_FIRST_LINE_BYTES = 256
"""What Linux reads of a script to find its interpreter."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class Spawner:
    """Starts commands, and remembers where each was found.

    Args:
        shares_terminal: they stay in our session, each in a process group of its own; else each has a session.
    """

    def __init__(self, *, shares_terminal: bool = False) -> None:
        self._apart: dict[str, Any] = {"setpgroup": 0} if shares_terminal else {"setsid": True}
        self._paths: dict[tuple[str, str], str] = {}

    def spawn(self, argv: Sequence[str | bytes], env: Mapping[str, str], stdio: tuple[int, int, int]) -> int:
        """Start a command, and return its process id, which is also that of its process group.

        Args:
            argv: the command, as text, and its arguments. A script without `#!` is run by /bin/sh, as xargs does.
            env: the whole environment; its PATH is where the command is looked for.
            stdio: descriptors (> 2) that become its streams 0, 1 and 2.

        Raises:
            CommandNotFound: there is no such command.
            CommandNotExecutable: there is, but the system does not execute it.
            OSError: no process or memory is left; `refusal` makes it one of ours.
        """
        key = (os.fsdecode(argv[0]), env.get("PATH", os.defpath))
        path = self._paths.get(key) or self._paths.setdefault(key, find_program(*key))
        try:
            return self._posix_spawn(path, argv, env, stdio)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return self._posix_spawn("/bin/sh", ["/bin/sh", path, *argv[1:]], env, stdio)
            if error.errno in _NO_ROOM:
                raise
            # It was there when it was looked up; what is there now decides.
            del self._paths[key]
            if error.errno != errno.ENOENT:
                raise CommandNotExecutable(f"{path} cannot be executed: {error.strerror}.") from error
            if find_program(*key) != path:
                return self.spawn(argv, env, stdio)
            check_interpreter(path)
            raise CommandNotExecutable(f"{path} cannot be executed: what loads it does not exist.") from error

    def _posix_spawn(
        self, path: str, argv: Sequence[str | bytes], env: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        """Run the file `path`.

        Measured per start: 80 µs, and 160 µs through subprocess.Popen, both by vfork. A session costs no more than a
        process group; without one whatever reads the terminal is stopped.
        """
        return os.posix_spawn(
            path,
            list(argv),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)],
            setsigmask=(),
            setsigdef=RESTORED_SIGNALS,
            **self._apart,
        )


def refusal(error: OSError) -> Refused | None:
    """What to raise when one more child met the limits of the system; None if it is something else."""
    if error.errno not in _NO_ROOM:
        return None
    return Refused(
        f"Cannot start one more program: {error.strerror}.",
        hint="Run fewer at once (-j), or raise the limits of processes and open files (ulimit -u, -n).",
    )


def keep_descriptors_from_children() -> None:
    """Make sure that a child gets its three streams and nothing else.

    Python opens everything close-on-exec; what remains is what our own caller left open for us (`exec 9> lock`). And
    the numbers 0 to 2 must be taken, or a pipe of ours gets one, and messages to stream 2 go into it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(fd)
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        numbers = list(range(1024))
    for number in numbers:
        if number > 2:
            with suppress(OSError):  # the listing itself was one
                os.set_inheritable(number, False)


def find_program(command: str, path: str) -> str:
    """The path of `command`, looked for in the folders of `path` unless it names a place itself.

    Raises:
        CommandNotFound: there is no such command.
        CommandNotExecutable: it cannot be run.
    """
    names_place = "/" in command
    found = ""
    for candidate in [command] if names_place else [os.path.join(folder or ".", command) for folder in path.split(":")]:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
        if not found and (os.path.exists(candidate) if names_place else os.path.isfile(candidate)):
            found = candidate
    if found:
        what = "it is a folder" if os.path.isdir(found) else "its mode does not allow it"
        raise CommandNotExecutable(f"{found} cannot be executed: {what}.", hint=f"See `ls -ld {found}`.")
    where = "" if names_place else f" in PATH ({path})"
    hint = "Check its name, or give its full path."
    if len(words := command.split()) > 1:
        hint = f"Separate the program and its arguments: {' '.join(words)}; or: sh -c {quote(command)}"
    raise CommandNotFound(f"There is no command {command!r}{where}.", hint=hint)


def check_program(command: str) -> None:
    """Check that a command can be run before anything is done for it, as far as that can be seen.

    Raises:
        CommandNotFound: there is no such command.
        CommandNotExecutable: it cannot be run, or a script's interpreter cannot.
    """
    check_interpreter(find_program(command, os.environ.get("PATH", os.defpath)))


def check_interpreter(path: str) -> None:
    """Check that the interpreter that the first line of a script names can be run.

    Raises:
        CommandNotExecutable: it cannot.
    """
    try:
        with open(path, "rb") as file:
            first_line = file.readline(_FIRST_LINE_BYTES)
    except OSError:  # who may execute a file need not be able to read it
        return
    # Only a blank or a tab ends the name, not a carriage return.
    found = re.match(rb"#![ \t]*([^ \t\n\0]+)", first_line)
    name = os.fsdecode(found[1]) if found else ""
    if found and not (os.path.isfile(name) and os.access(name, os.X_OK)):
        what = "cannot be executed" if os.path.exists(name) else "does not exist"
        raise CommandNotExecutable(
            f"{path} cannot be executed: its interpreter {name!r} {what}.",
            hint="Its lines end as those of Windows do; `sed -i 's/\\r$//'` mends that."
            if name.endswith("\r")
            else "Check its first line.",
        )
