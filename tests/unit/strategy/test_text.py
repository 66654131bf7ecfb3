"""The language of strategies: its text form says exactly the tree, and an error points at its column."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsq.errors import InvalidStrategy
from opsq.strategy.arms import compile_arms
from opsq.strategy.text import parse
from opsq.strategy.tree import (
    NODES,
    CustomPriority,
    Fair,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
    Value,
)
from unit.strategy_trees import ODD_VALUES, nested, trees

ALL_NODES = ", ".join(NODES)


@given(trees())
def test_parsed_text_of_a_strategy_is_the_strategy(strategy: Strategy) -> None:
    assert parse(str(strategy)) == strategy


@given(ODD_VALUES)
@example("")
@example("7")
@example(7)
@example(-(1 << 63))
@example(str(1 << 63))
def test_value_is_read_as_what_it_was_written_from(value: Value) -> None:
    """Text and integers stay apart, in parsing and in comparing."""
    read = parse(str(SelectOnly("k", value)))
    assert read == SelectOnly("k", value)
    assert isinstance(read, SelectOnly)
    assert type(read.value) is type(value)


@given(trees(), st.data())
def test_blanks_between_the_parts_do_not_matter(strategy: Strategy, data: st.DataObject) -> None:
    parts = []
    in_string = False
    for at, sign in enumerate(text := str(strategy)):
        in_string ^= sign == '"' and text[at - 1] != "\\"
        parts.append(f" {sign}\t" if sign in "(),=" and not in_string else sign)
    if "\\" not in text:
        assert parse(f"\n{''.join(parts)} ") == strategy


@given(
    st.lists(
        st.sampled_from([*'(),=%"\\7-. ', "Fair", "OrElse", "SelectOnly", "MaxSimultaneous", "Random", "a"]),
        max_size=12,
    )
)
@settings(max_examples=300)
def test_any_text_is_parsed_or_refused_with_a_column(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        strategy = parse(text)
    except InvalidStrategy as error:
        message = error.message
    else:
        message = f"Strategy {text!r}, column " if parse(str(strategy)) == strategy else "is not what it prints"
    assert message.startswith(f"Strategy {text!r}, column ")


@pytest.mark.parametrize(
    ("text", "strategy", "canonical"),
    [
        ("Random", Random(), "Random"),
        ("Fair(tenant)", Fair("tenant", OldestFirst()), "Fair(tenant)"),
        ("Fair(tenant, OldestFirst)", Fair("tenant"), "Fair(tenant)"),
        ("Fair(tenant, Random)", Fair("tenant", Random()), "Fair(tenant, Random)"),
        ("SelectOnly(a=7)", SelectOnly("a", 7), "SelectOnly(a=7)"),
        ('SelectOnly(a="7", Random)', SelectOnly("a", "7", Random()), 'SelectOnly(a="7")'),
        ("SelectOnly(a=007)", SelectOnly("a", "007"), "SelectOnly(a=007)"),
        ("SelectOnly(a=-0)", SelectOnly("a", 0), "SelectOnly(a=0)"),
        ('SelectOnly(a="\\u00e9 b")', SelectOnly("a", "é b"), 'SelectOnly(a="é b")'),
        (
            "PreferDistinct(t, 1, NewestFirst)",
            PreferDistinct("t", 1, NewestFirst()),
            "PreferDistinct(t, 1, NewestFirst)",
        ),
        ("MaxSimultaneous(t,50%)", MaxSimultaneous("t", Percent(50)), "MaxSimultaneous(t, 50%)"),
        ("OrElse(CustomPriority,Random)", OrElse(CustomPriority(), Random()), "OrElse(CustomPriority, Random)"),
    ],
)
def test_text_is_this_tree_and_prints_like_that(text: str, strategy: Strategy, canonical: str) -> None:
    assert parse(text) == strategy
    assert str(strategy) == canonical


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 1, f"expected a strategy, one of {ALL_NODES}"),
        ("   ", 4, f"expected a strategy, one of {ALL_NODES}"),
        ("7", 1, f"expected a strategy, one of {ALL_NODES}"),
        ("Oldest", 1, "'Oldest' is not a strategy; did you mean OldestFirst?"),
        ("  xyz", 3, f"'xyz' is not a strategy; expected one of {ALL_NODES}"),
        ("random", 1, "'random' is not a strategy; did you mean Random?"),
        ("Random()", 7, "Random takes no arguments"),
        ("Random Random", 8, "expected the end"),
        ("Random)", 7, "expected the end"),
        ("Fair", 5, "expected '(' after Fair"),
        ("Fair()", 6, "expected a metadata key"),
        ("Fair(tenant", 12, "expected ')'"),
        ("Fair(tenant,)", 13, f"expected a strategy, one of {ALL_NODES}"),
        (
            "Fair(7x)",
            6,
            "expected a metadata key, which begins with a letter or _ and has at most 64 of A-Z a-z 0-9 _ . -",
        ),
        (
            f"Fair({'k' * 65})",
            6,
            "expected a metadata key, which begins with a letter or _ and has at most 64 of A-Z a-z 0-9 _ . -",
        ),
        ("Fair(tenant, Fairy(x))", 14, "'Fairy' is not a strategy; did you mean Fair?"),
        ("SelectOnly(a)", 13, "expected '='"),
        ("SelectOnly(a=)", 14, "expected a value: a bare word, or a JSON string in double quotes"),
        ('SelectOnly(a="b)', 14, "expected the closing quote of a JSON string"),
        ('SelectOnly(a="\\x")', 14, "expected a JSON string"),
        ('SelectOnly(a="\n")', 14, "expected a JSON string"),
        ('SelectOnly(a="\\ud800")', 1, "'\\ud800' is not a metadata value: an integer of 64 bits, or text"),
        ("SelectOnly(a=b c)", 16, "expected ')'"),
        ("PreferDistinct(t)", 17, "expected ','"),
        ("PreferDistinct(t, Random)", 19, "expected a count, or a percentage such as 50%"),
        ("PreferDistinct(t, 0)", 19, "expected a count from 1"),
        ("PreferDistinct(t, 2147483648)", 19, "expected a count from 1"),
        (f"PreferDistinct(t, {'9' * 5000})", 19, "expected a count from 1"),
        ("MaxSimultaneous(t, 0%)", 20, "expected a percentage from 1% to 100%"),
        ("MaxSimultaneous(t, 101%)", 20, "expected a percentage from 1% to 100%"),
        ("MaxSimultaneous(t, -1)", 20, "expected a count, or a percentage such as 50%"),
        ("MaxSimultaneous(t, 1.5)", 21, "expected ')'"),
        ("OrElse(Random)", 14, "expected ','"),
        ("OrElse(Random, Random, Random)", 22, "expected ')'"),
        ("SelectOnly(a=1, " * 16 + "Random" + ")" * 16, 257, "expected no more than 16 levels"),
    ],
)
def test_error_names_its_column_and_what_was_expected(text: str, column: int, expected: str) -> None:
    with pytest.raises(InvalidStrategy) as caught:
        parse(text)
    assert (
        caught.value.message == f"Strategy {text!r}, column {column}: {expected}{'' if expected.endswith('?') else '.'}"
    )


def test_integer_of_more_than_64_bits_is_text() -> None:
    assert parse(f"SelectOnly(a={1 << 63})") == SelectOnly("a", str(1 << 63))
    assert parse(f"SelectOnly(a={'9' * 5000})") == SelectOnly("a", "9" * 5000)


def test_named_strategy_stands_for_its_text_as_a_whole() -> None:
    named = {"interactive": "OrElse(SelectOnly(kind=preview), Random)"}
    assert parse(" interactive ", named) == parse(named["interactive"])
    with pytest.raises(InvalidStrategy, match="cannot be nested"):
        parse("Fair(tenant, interactive)", named)


# --- trees made by hand ---


@pytest.mark.parametrize("value", [True, None, 1.5, 1 << 63, -(1 << 63) - 1, b"x", "\ud800"])
def test_value_that_no_metadata_can_have_is_refused(value: object) -> None:
    with pytest.raises(InvalidStrategy, match="not a metadata value"):
        SelectOnly("a", value)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("maximum", [True, 0, -1, 1 << 31, 1.5, "5", None])
def test_maximum_that_is_no_count_is_refused(maximum: object) -> None:
    for node in (MaxSimultaneous, PreferDistinct):
        with pytest.raises(InvalidStrategy, match="not a maximum"):
            node("a", maximum)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("percent", [0, 101, -5, True, 50.0])
def test_percentage_outside_1_to_100_is_refused(percent: int) -> None:
    with pytest.raises(InvalidStrategy, match="not a maximum"):
        Percent(percent)


@pytest.mark.parametrize("key", ["", "7", "a b", "k" * 65, "é", None])
def test_key_that_no_metadata_can_have_is_refused(key: str) -> None:
    for make in (Fair, MaxSimultaneous, PreferDistinct, lambda key: SelectOnly(key, 1)):
        with pytest.raises(InvalidStrategy, match="not a metadata key"):
            make(key)


def test_text_where_a_strategy_belongs_is_refused() -> None:
    with pytest.raises(InvalidStrategy, match="'Random' is not a strategy"):
        Fair("tenant", "Random")  # type: ignore[arg-type]  # that is the point


# --- limits ---


def test_strategy_of_16_levels_is_taken_and_one_of_17_refused() -> None:
    assert isinstance(nested(16), Strategy)
    refused = nested(17)
    assert isinstance(refused, InvalidStrategy)
    assert "limit is 16" in refused.message
    assert parse(str(nested(16))) == nested(16)


@pytest.mark.parametrize("innermost", ["Random", "Fair(f, Random)"])
def test_strategy_of_64_arms_is_taken_and_one_of_128_refused(innermost: str) -> None:
    text = innermost
    for number in range(6):
        text = f"PreferDistinct(k{number}, 1, {text})"
    assert len(compile_arms(parse(text))) == 64
    with pytest.raises(InvalidStrategy, match="128 arms; the limit is 64") as caught:
        parse(f"PreferDistinct(k, 1, {text})")
    assert "column 1" in caught.value.message
    assert caught.value.hint == "Each PreferDistinct doubles the arms inside it."


def test_arms_inside_fair_count() -> None:
    """Each value of the key has a front for each of them."""
    inner = "Random"
    for _ in range(4):
        inner = f"PreferDistinct(k, 1, {inner})"
    assert parse(f"OrElse(Fair(a, {inner}), Fair(b, {inner}))").arms_count() == 32
    with pytest.raises(InvalidStrategy, match="the limit is 64"):
        parse(f"PreferDistinct(x, 1, PreferDistinct(y, 1, PreferDistinct(z, 1, Fair(a, {inner}))))")


def test_arms_that_would_be_as_dry_as_one_before_are_left_out() -> None:
    once = compile_arms(parse("PreferDistinct(k, 1, OldestFirst)"))
    assert compile_arms(parse("PreferDistinct(k, 1, PreferDistinct(k, 1, OrElse(OldestFirst, OldestFirst)))")) == once
