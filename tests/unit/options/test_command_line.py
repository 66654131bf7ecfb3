"""A command line is read as typer would read it, from the same declarations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.exceptions import TyperException

from opsq.cli.help_pages import command
from opsq.cli.verb_table import GROUPS, function_of
from opsq.cli.verb_table import VERBS as FIRST_WORDS
from opsq.errors import UsageError
from opsq.options.command_line import Given, parse, split_verb, wants_help, wants_json
from opsq.options.option import Declared, declared, text

VERBS = [full for name in FIRST_WORDS for full in ([f"{name} {part}" for part in GROUPS.get(name, ())] or [name])]


def parsed(name: str, words: list[str], environ: dict[str, str]) -> Given:
    """What the parser reads for a verb."""
    return parse(name, declared(function_of(name)), words, environ)


def unread(name: str) -> Declared:
    """What a verb takes, all of it as the text that was given."""
    found = declared(function_of(name))
    return replace(found, options={each: replace(option, read=text) for each, option in found.options.items()})


def by_typer(name: str, words: list[str]) -> dict[str, object] | None:
    """What typer reads of a command line; None when it is refused."""
    found: dict[str, object] = {}
    try:
        with command(name).make_context(f"opsq {name}", list(words)) as context:
            for each, option in unread(name).options.items():
                is_given = getattr(context.get_parameter_source(each), "name", "") == "COMMANDLINE"
                value = context.params[each] if is_given else option.default
                found[each] = list(value) if option.is_many else "1" if value is True else value
    except TyperException:
        return None
    return found


def words_of(name: str) -> st.SearchStrategy[list[str]]:
    """Command lines of a verb: its options with and without values, some that it has not, and arguments."""
    options = declared(function_of(name)).options.values()
    flags = [flag for option in options for flag in option.flags]
    values = ["3", "1s", "x", "k=v", "a=1", "all", "", "-", "--", "-z", "--nope", "-5"]
    words = st.one_of(
        st.sampled_from(flags),
        st.sampled_from(values),
        st.builds("{}={}".format, st.sampled_from(flags), st.sampled_from(values)),
        st.builds("{}{}".format, st.sampled_from(flags), st.sampled_from(["3", "x", "q"])),
    )
    return st.lists(words, max_size=6)


@pytest.mark.parametrize("name", VERBS)
@settings(max_examples=30)
@given(data=st.data())
def test_command_line_is_read_as_typer_reads_it(name: str, data: st.DataObject) -> None:
    """Both refuse it, or both read the same arguments and options."""
    words = data.draw(words_of(name))
    if wants_help(words):
        return
    try:
        found = parse(name, unread(name), words, {})
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
