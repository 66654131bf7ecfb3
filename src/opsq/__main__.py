"""The program `opsq`: how its process begins and ends.

It owns the exit status and reports every failure; it must not know what a verb does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from opsq.quick_imports import load_msgspec

_SWALLOWS = frozenset({"typing", "msgspec._utils"})
"""What msgspec calls while it makes a decoder. An exception of theirs may be lost there, as one in an import may."""
_LATER_S = 0.005


def main() -> NoReturn:
    """Run the command line of this process, and end it.

    The interpreter is not taken down in the orderly way, which takes as long as a quick verb: all that is open is
    closed by the code that opened it, and output is flushed here.
    """
    if os.getpid() == 1:
        from opsq.process_one import go_on_in_a_child

        go_on_in_a_child()
    gc.disable()  # nothing worth collecting is made while modules load; `app` enables it for all that is not quick
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if sys.stdout is not None and sys.stdout.encoding != "utf-8":
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # what a locale lacks costs no page
    status = run(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if "opentelemetry.trace" in sys.modules:
        from opsq.traces import flush

        flush()
    os._exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command line.

    Returns:
        The exit status of the table in opsq(1).
    """
    words = list(argv)
    try:
        _open_standard_descriptors()
        status = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _silenced(130)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head -1`
        return _silenced(141)
    except Exception as error:  # noqa: BLE001  # every failure ends here, and is reported there
        from opsq.cli.output.error_report import report_error

        return report_error(error, words)
    return status


def _run(words: list[str]) -> int:
    load_msgspec()
    from opsq.options.command_line import split_verb

    verb, rest = split_verb(words)
    if verb == ["completion"] and rest and rest[0] not in {"bash", "zsh", "fish"}:
        from opsq.cli.completion_candidates import KINDS, offer

        if rest[0] in KINDS:
            return offer(rest[0], rest[1:])
    from opsq.cli.app import run

    return run([*verb, *rest])


def _open_standard_descriptors() -> None:
    """Open /dev/null in place of closed standard streams, so that no socket or file becomes stdout."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(
                os.devnull, os.O_WRONLY
            )  # gets the lowest free number: this one; as stdin it cannot be read
            os.set_inheritable(opened, True)
            if descriptor > 0:
                setattr(sys, name, os.fdopen(opened, "w", closefd=False))


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; a little later where it may be swallowed, or cause a crash."""
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name in _SWALLOWS or frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, _LATER_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _silenced(status: int) -> int:
    """Discard all further output of this process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return status


if __name__ == "__main__":
    main()
