"""How deliveries that were given up are chosen on the command line. It must not know the file that they are in."""

from __future__ import annotations

from opsq.errors import UsageError
from opsq.options.option import Whole, argument, option

IDS = argument("[ID...]", "As `opsq notify dead` lists them.", Whole(1))
ALL = option("--all", "All of them.")


def chosen(ids: list[int], *, is_all: bool) -> list[int] | None:
    """The ids; None for all.

    Raises:
        UsageError: none, or both, were given.
    """
    if bool(ids) == is_all:
        raise UsageError("Give the ids of deliveries, or --all.", hint="`opsq notify dead` lists them.")
    return None if is_all else ids
