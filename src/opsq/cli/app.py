"""How a command line reaches its verb.

It must not know what a verb does, nor import anything slow: every verb passes through here, and only the one that is
asked for is imported. Pages of help are in `help_pages`.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from opsq.cli.verb_table import GROUPS, HOT_VERBS, OPTIONAL_VALUES, OTHERS_SAY, VERBS, function_of
from opsq.errors import UsageError
from opsq.options.command_line import parse, split_verb, wants_help
from opsq.options.option import declared


def run(words: Sequence[str]) -> int:
    """Run a command line whose global options stand behind the verb.

    Returns:
        The exit status.
    """
    words = _with_values(words)
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    if name and name not in VERBS:
        raise _unknown(name)
    if name in GROUPS and words not in (["--help"], ["-h"]):
        name, words = _with_part(name, words)
    if not name or name in GROUPS or wants_help(words):
        from opsq.cli.help_pages import show

        return show(name, words)
    # One is taken away, but what stands on which side of it matters.
    if name in {"run", "spark run"} and "--" in words:
        words.insert(words.index("--"), "--")
    _call(name, words)
    return 0


# --- inside -----------------------------------------------------------------------------------------------------------


def _call(name: str, words: list[str]) -> None:
    """Read the command line of a verb, and call the verb."""
    from opsq.cli.caller import Caller

    verb = function_of(name)
    found = declared(verb)
    given = parse(name, found, words)
    if name not in HOT_VERBS:
        gc.enable()
    verb(Caller(given.values, given.by_flag), **found.parameters(given.values))


def _with_values(words: Sequence[str]) -> list[str]:
    """A command line in which each option has its value; behind `--` nothing is an option."""
    end = words.index("--") if "--" in words else len(words)
    return [
        f"{word}={OPTIONAL_VALUES[word]}" if at < end and word in OPTIONAL_VALUES else word
        for at, word in enumerate(words)
    ]


def _with_part(group: str, words: list[str]) -> tuple[str, list[str]]:
    """The verb of a group that a command line names, else its first, and the rest of the line."""
    part, rest = split_verb(words)
    if part and part[0] in GROUPS[group]:
        return f"{group} {part[0]}", rest
    return f"{group} {GROUPS[group][0]}", words


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    hint = "`opsq --help` lists the verbs."
    if ours := OTHERS_SAY.get(name) or next((f"{group} {name}" for group in GROUPS if name in GROUPS[group]), None):
        hint = f"It is called `opsq {ours}` here."
    elif near := get_close_matches(name, VERBS, 1):
        hint = f"Did you mean `opsq {near[0]}`?"
    return UsageError(f"opsq has no verb {name!r}.", hint=hint)
