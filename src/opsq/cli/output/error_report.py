"""Reports a failure: a line on stderr or a JSON document on stdout, and the exit status; logs the traceback of a bug.

It must not import anything slow at load time, and must not fail itself.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from opsq.cli.output.folding import folded
from opsq.errors import Bug, InputUnreadable, NotPermitted, OpsqError, StorageFull, UsageError
from opsq.filesystem import is_no_room
from opsq.options.command_line import wants_json
from opsq.printable import printable

_PLAIN_CHARACTERS = 200
_LINE_END = "\n"
_COMPLAINT_CHARACTERS, _COMPLAINT_LINES = 4000, 20


class Exit(OpsqError):
    """Ends a verb that has already reported everything with a status of its own."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def report_error(error: Exception, words: Sequence[str]) -> int:
    """Report `error` to the user.

    Args:
        words: the command line, which decides whether JSON is wanted.

    Returns:
        The exit status.
    """
    if isinstance(error, Exit):
        return error.status
    failure = as_failure(error)
    if wants_json(words):
        print_error(failure)
    if not is_silent(failure):
        try:
            print(folded(error_text(failure), sys.stderr), file=sys.stderr, flush=True)
        except OSError:
            return failure.exit_status
    return failure.exit_status


def error_text(failure: OpsqError) -> str:
    """A failure in words, cut to a readable length: the message may contain the output of a program."""
    message = failure.message
    if len(message) > _PLAIN_CHARACTERS or not message.isprintable():
        from opsq.documents.readable import brief

        message = brief(message, _COMPLAINT_CHARACTERS, _COMPLAINT_LINES)
    return f"opsq: {message}" + (f"\n{printable(failure.hint, keep=_LINE_END)}" if failure.hint else "")


def is_silent(failure: OpsqError) -> bool:
    """Whether the exit status is enough for a script: an empty reserve ends a loop and is no error."""
    return failure.code == "nothing_free" and not sys.stderr.isatty()


def as_failure(error: Exception) -> OpsqError:
    """What `error` means for the user."""
    if isinstance(error, OpsqError):
        return error
    if isinstance(error, OSError):
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        message = f"{place}{error.strerror or error}."
        if is_no_room(error):
            return StorageFull(f"{message}", hint="Make room and try again.")
        if error.errno in (errno.EACCES, errno.EPERM):
            return NotPermitted(message)
        if place:
            return InputUnreadable(message)
    if isinstance(error, UnicodeEncodeError):
        return UsageError(
            f"{error.object!r} is not valid UTF-8.",
            hint="Names and values are text; chunks and attachments may be any bytes.",
        )
    return _bug(error)


def print_error(failure: OpsqError) -> None:
    """Print the JSON document of a failure on stdout."""
    from opsq.cli.output.json_output import print_json
    from opsq.documents.shape import ErrorDocument, ErrorShape

    try:
        print_json(ErrorDocument(ErrorShape.of(failure)))
    except OSError:
        return


def _bug(error: Exception) -> Bug:
    import time
    import traceback

    text = "".join(traceback.format_exception(error))
    path = _write_log(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} a bug in opsq {' '.join(sys.argv[1:2])}\n{text}")
    return Bug(
        f"This is a bug in opsq ({type(error).__name__}: {error}).",
        hint=f"The traceback is in {path}; please report it." if path else text,
    )


def _write_log(text: str) -> str:
    """Append to the log of the state folder, else to a new file.

    Returns:
        The path; "" when nothing can be written anywhere.
    """
    import tempfile

    try:
        from opsq.settings import load
        from opsq.users import open_file

        path = load().log_path
        descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except (OSError, OpsqError):
        try:
            descriptor, path = tempfile.mkstemp(prefix="opsq-bug-", suffix=".log")
        except OSError:
            return ""
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
        log.write(text)
    return path
