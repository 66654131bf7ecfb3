"""Internal errors: which end the engine, and what the request is answered that has met another.

Must not log, nor end anything: the driver does.
"""

from __future__ import annotations

from opsq.errors import Bug, OpsqError


class Fatal(Exception):  # not an error of a request: the engine must end
    """Nothing may be answered any more.

    The outcome of a commit is unknown, or memory does not say what was committed, or the file has another owner.
    """


def describe_bug(error: Exception) -> OpsqError:
    """The answer to a request that met an internal error, where nobody keeps a log."""
    return Bug(f"Internal error (bug): {type(error).__name__}: {error}.")
