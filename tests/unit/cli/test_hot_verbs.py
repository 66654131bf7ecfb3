"""The parser of the hot verbs reads a command line as typer would read it, from the same declarations."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.exceptions import TyperException

from opsq.cli import app
from opsq.cli.hot_verbs import Given, parse
from opsq.errors import UsageError
from opsq.options.command_line import split_verb, wants_json
from opsq.options.option import declared

SLOW = [
    "typer",
    "rich",
    "asyncio",
    "logging",
    "subprocess",
    "tempfile",
    "shutil",
    "json",
    "dataclasses",
    "inspect",
    "pathlib",
    "uvloop",
    "obstore",
    "apsw",
]

WORDS = [
    "-n",
    "3",
    "-n3",
    "--count",
    "--count=3",
    "-s",
    "-sX",
    "--wait",
    "--wait=5",
    "-w",
    "7",
    "-q",
    "-qn3",
    "--json",
    "--",
    "-",
    "x",
    "",
    "-z",
    "--foreground",
    "--trace-sql",
    "--max-lost",
    "--log-level=debug",
]


def parsed(name: str, words: list[str], environ: dict[str, str]) -> Given:
    """What the parser reads for a verb."""
    return parse(name, declared(app.function_of(name)), words, environ)


def by_typer(name: str, words: list[str]) -> dict[str, object] | None:
    """What typer reads of a command line; None when it is refused."""
    try:
        return app.read(name, list(words))[0]
    except (TyperException, UsageError):
        return None


@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_parser_agrees_with_typer_on_every_command_line(words: list[str]) -> None:
    """Both refuse it, or both read the same arguments and options. `extend` takes arguments, `start` every setting."""
    for name in ("reserve", "extend", "start"):
        try:
            found = parsed(name, words, {})
        except UsageError:
            assert by_typer(name, words) is None
        else:
            assert by_typer(name, words) == found.values


def test_flag_wins_over_environment_and_says_so() -> None:
    environ = {"OPSQ_RESERVE_COUNT": "5", "OPSQ_RESERVE_STRATEGY": "NewestFirst", "OPSQ_QUIET": "on"}
    found = parsed("reserve", ["-n", "2"], environ)
    assert (found.values["count"], found.values["strategy"], found.values["quiet"]) == (2, "NewestFirst", True)
    assert found.by_flag == {"count"}


def test_empty_variable_counts_as_unset() -> None:
    assert parsed("reserve", [], {"OPSQ_RESERVE_COUNT": ""}).values["count"] == 1


def test_message_names_the_variable_that_is_wrong() -> None:
    with pytest.raises(UsageError, match="OPSQ_RESERVE_COUNT"):
        parsed("reserve", [], {"OPSQ_RESERVE_COUNT": "0"})


@pytest.mark.parametrize(
    ("argv", "verb", "rest"),
    [
        (["list"], ["list"], []),
        (["--json", "list", "-n", "1"], ["list"], ["--json", "-n", "1"]),
        (["--state-dir", "list", "show", "1"], ["show"], ["--state-dir", "list", "1"]),
        (["--state-dir=x", "-q", "show"], ["show"], ["--state-dir=x", "-q"]),
        (["--json"], [], ["--json"]),
        ([], [], []),
    ],
)
def test_global_options_in_front_move_behind_the_verb(argv: list[str], verb: list[str], rest: list[str]) -> None:
    assert split_verb(argv) == (verb, rest)


def test_global_option_without_its_value_is_refused() -> None:
    with pytest.raises(UsageError, match="--socket needs a value"):
        split_verb(["--socket"])


def test_json_is_known_to_be_wanted_also_when_nothing_else_is_understood() -> None:
    assert wants_json(["bogus", "--json"], {})
    assert wants_json([], {"OPSQ_JSON": "1"})
    assert not wants_json(["consume", "--", "--json"], {})
    assert not wants_json([], {"OPSQ_JSON": "0"})


def test_hot_verbs_load_nothing_slow() -> None:
    """Also not what the common way of each verb needs besides."""
    code = (
        "import sys, opsq.__main__\n"
        "opsq.__main__.run(['read', 'no handle'])\n"
        "from opsq.cli.verbs import reserve, read, complete, fail, release, extend\n"
        "from opsq.content import chunk_reader, content_store, local_store, manifest\n"
        "print(*[name for name in sys.argv[1:] if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *SLOW, "typing_extensions"], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []
