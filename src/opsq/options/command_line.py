"""What a command line says: which verb is meant, the values of its options, and whether JSON or help is wanted.

It must not import anything that is slow to load: every verb passes through here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from opsq.errors import UsageError
from opsq.options.option import GLOBAL, TRUE_WORDS, Declared, Option, Value


class Given(NamedTuple):
    """What a command line gave for one verb: the value of every option and argument by the name of its parameter."""

    values: dict[str, Value]
    by_flag: frozenset[str]
    """The options that stood on the command line itself."""


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


def wants_help(words: Sequence[str]) -> bool:
    """Whether a command line asks for help; behind `--` nothing is an option."""
    return not {"--help", "-h"}.isdisjoint(words[: words.index("--")] if "--" in words else words)


def parse(verb: str, found: Declared, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Given:
    """Read the command line of a verb, as click would.

    Options anywhere, `--x=v`, `-xv`, `--` ends them, the last one wins; of one that is repeatable all count, in a
    variable with blanks between.

    Raises:
        UsageError: an unknown option, a missing or surplus value or argument, or a value out of range.
    """
    names = {flag: name for name, option in found.options.items() for flag in option.flags}
    arguments: list[str] = []
    texts: dict[str, list[tuple[str, str]]] = {}
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            arguments += reversed(rest)
            break
        if len(word) < 2 or word[0] != "-":
            arguments.append(word)
            continue
        flag, has_value, value = word, False, ""
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            has_value = bool(equals)
        elif len(word) > 2:
            flag, has_value, value = word[:2], True, word[2:]
        if flag not in names:
            raise UsageError(f"opsq {verb} has no option {flag}.", hint=_near(verb, flag, names))
        if found.options[names[flag]].is_flag:
            if has_value and word.startswith("--"):
                raise UsageError(f"Option {flag} takes no value.", hint=explained(verb))
            if has_value:
                rest.append("-" + value)
            value = "1"
        elif not has_value:
            if not rest:
                raise UsageError(f"Option {flag} needs a value.", hint=explained(verb))
            value = rest.pop()
        texts.setdefault(names[flag], []).append((flag, value))
    by_flag = frozenset(texts)
    for name, option in found.options.items():
        variable = option.variable(verb) if option.flags else ""
        if variable and name not in texts and (value := environ.get(variable, "")):
            texts[name] = [(variable, each) for each in (value.split() if option.is_many else [value])]
    texts |= _arguments(verb, found, arguments)
    values: dict[str, Value] = {}
    try:
        for name, option in found.options.items():
            read = [option.read(*text) for text in texts.get(name, ())]
            values[name] = (read if option.is_many else read[-1]) if read else option.default
    except UsageError as error:
        error.hint = error.hint or explained(verb)
        raise
    return Given(values, by_flag)


def _arguments(verb: str, found: Declared, words: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The words of each argument; only the last may have several."""
    wanted = {name: option for name, option in found.options.items() if not option.flags}
    taken: dict[str, list[tuple[str, str]]] = {}
    left = list(words)
    for name, option in wanted.items():
        own, left = (left, []) if option.is_many else (left[:1], left[1:])
        if not own and not option.is_optional:
            raise UsageError(f"opsq {verb}: {option.metavar} is missing.", hint=explained(verb))
        taken[name] = [(option.metavar, word) for word in own]
    if left:
        raise UsageError(_surplus(verb, list(wanted.values()), words, left[0]), hint=explained(verb))
    return taken


def _surplus(verb: str, wanted: list[Option], words: list[str], first: str) -> str:
    if not wanted:
        return f"opsq {verb} takes no argument, but {first!r} was given."
    if len(wanted) == 1:
        return f"opsq {verb} takes one {wanted[0].metavar}, but {len(words)} were given."
    return f"opsq {verb} takes {' '.join(each.metavar for each in wanted)}, but {first!r} was given besides."


def _near(verb: str, flag: str, names: Mapping[str, str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(flag, names, 1, 0.7)
    return f"Did you mean {near[0]}?" if near else f"`opsq {verb} --help` lists them."


def explained(verb: str) -> str:
    """The hint where to read how a command line is written; "": of opsq itself."""
    return f"`opsq {f'{verb} ' if verb else ''}--help` explains it."
