"""What a command line says before any verb has read it: which verb is meant, and whether JSON is wanted.

It must not import anything that is slow to load: every hot verb passes through here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from opsq.errors import UsageError
from opsq.options.option import GLOBAL, TRUE_WORDS


def split_verb(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Move the global options in front of the verb behind it.

    Returns:
        The verb alone in a list (or nothing, when there is none) and everything else.

    Raises:
        UsageError: a global option lacks its value.
    """
    with_value = {flag for option in GLOBAL.values() if not option.is_flag for flag in option.flags}
    position = 0
    while position < len(argv) and argv[position].startswith("-") and argv[position] != "-":
        if argv[position] in with_value:
            if position + 1 == len(argv):
                raise UsageError(f"Option {argv[position]} needs a value.")
            position += 1
        position += 1
    return list(argv[position : position + 1]), [*argv[:position], *argv[position + 1 :]]


def wants_json(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a command line asks for JSON, even one that cannot be parsed otherwise."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return "--json" in words or environ.get("OPSQ_JSON", "").strip().lower() in TRUE_WORDS
