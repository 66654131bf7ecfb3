"""The way of the verbs that shell loops call for every chunk: reads the command line and calls the verb, without typer.

Nothing that is slow to load may be imported here or by these verbs; a test watches it. What the options are stands with
each verb.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from opsq.cli.caller import Caller
from opsq.errors import UsageError
from opsq.options.option import Declared, Value, declared


class Given(NamedTuple):
    """What a command line gave for one verb: the value of every option and argument by the name of its parameter."""

    values: dict[str, Value]
    by_flag: frozenset[str]
    """The options that stood on the command line itself."""


def run_hot(name: str, words: Sequence[str]) -> int:
    """Run a hot verb.

    Args:
        words: the command line behind the verb.

    Returns:
        The exit status.
    """
    verb = getattr(import_module(f"opsq.cli.verbs.{name}"), name)
    found = declared(verb)
    given = parse(name, found, words)
    verb(Caller(given.values, given.by_flag), **found.parameters(given.values))
    return 0


def parse(verb: str, found: Declared, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Given:
    """Read the command line of a hot verb, as click would.

    Options anywhere, `--x=v`, `-xv`, `--` ends them, the last one wins.

    Raises:
        UsageError: an unknown option, a missing or surplus value or argument, or a value out of range.
    """
    names = {flag: name for name, option in found.options.items() for flag in option.flags}
    arguments: list[str] = []
    texts: dict[str, tuple[str, str]] = {}
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
            raise UsageError(f"opsq {verb} has no option {flag}.", hint=f"`opsq {verb} --help` lists them.")
        if found.options[names[flag]].is_flag:
            if has_value and word.startswith("--"):
                raise UsageError(f"Option {flag} takes no value.")
            if has_value:
                rest.append("-" + value)
            value = "1"
        elif not has_value:
            if not rest:
                raise UsageError(f"Option {flag} needs a value.")
            value = rest.pop()
        texts[names[flag]] = (flag, value)
    by_flag = frozenset(texts)
    values: dict[str, Value] = {}
    for name, option in found.options.items():
        if not option.flags:
            values[name] = arguments if option.is_many else arguments[0] if arguments else option.default
            continue
        variable = option.variable(verb)
        if name not in texts and environ.get(variable):
            texts[name] = (variable, environ[variable])
        values[name] = option.read(*texts[name]) if name in texts else option.default
    _check_arguments(verb, found, arguments)
    return Given(values, by_flag)


def _check_arguments(verb: str, found: Declared, arguments: list[str]) -> None:
    argument = next((option for option in found.options.values() if not option.flags), None)
    if argument is None:
        if arguments:
            raise UsageError(f"opsq {verb} takes no argument, but {arguments[0]!r} was given.")
    elif not arguments and not argument.is_optional:
        raise UsageError(f"opsq {verb} needs a {argument.metavar}.", hint=f"`opsq {verb} --help` explains it.")
    elif not argument.is_many and len(arguments) > 1:
        raise UsageError(f"opsq {verb} takes one {argument.metavar}, but {len(arguments)} were given.")
