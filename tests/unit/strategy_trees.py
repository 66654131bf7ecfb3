"""Generates strategies for properties: any tree of the nine nodes, over keys and values as awkward as they may be."""

from __future__ import annotations

from hypothesis import strategies as st

from opsq.errors import InvalidStrategy
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    Max,
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

SORTED: st.SearchStrategy[Strategy] = st.sampled_from([OldestFirst(), NewestFirst(), CustomPriority()])
ORDERS: st.SearchStrategy[Strategy] = st.sampled_from([OldestFirst(), NewestFirst(), CustomPriority(), Random()])
ODD_KEYS = st.one_of(
    st.sampled_from(["tenant", "submission", "_", "a.b-c", "K" * 64]),
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", fullmatch=True),
)
ODD_VALUES = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(
        [
            "",
            "7",
            "-0",
            "007",
            "true",
            '"',
            "\\",
            "a b",
            "a,b)",
            "\0",
            "\u2028",
            "9" * 30,
            "-9223372036854775809",
            "é",
            "1%",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
MAXIMA = st.one_of(st.integers(1, (1 << 31) - 1), st.builds(Percent, st.integers(1, 100)))


@st.composite
def trees(
    draw: st.DrawFn,
    depth: int = 4,
    *,
    orders: st.SearchStrategy[Strategy] = ORDERS,
    keys: st.SearchStrategy[str] = ODD_KEYS,
    values: st.SearchStrategy[Value] = ODD_VALUES,
    maxima: st.SearchStrategy[Max] = MAXIMA,
) -> Strategy:
    """A strategy nested at most `depth` deep."""
    inner = trees(depth - 1, orders=orders, keys=keys, values=values, maxima=maxima) if depth > 1 else orders
    node = draw(
        st.sampled_from(
            ["order", "SelectOnly", "MaxSimultaneous", "PreferDistinct", "Fair", "OrElse"] if depth > 1 else ["order"]
        )
    )
    match node:
        case "SelectOnly":
            return SelectOnly(draw(keys), draw(values), draw(inner))
        case "MaxSimultaneous":
            return MaxSimultaneous(draw(keys), draw(maxima), draw(inner))
        case "PreferDistinct":
            return PreferDistinct(draw(keys), draw(maxima), draw(inner))
        case "Fair":
            return Fair(draw(keys), draw(inner))
        case "OrElse":
            return OrElse(draw(inner), draw(inner))
        case _:
            return draw(orders)


def nested(depth: int) -> Strategy | InvalidStrategy:
    """A strategy of a given depth, or why there is none."""
    strategy: Strategy = OldestFirst()
    try:
        for _ in range(depth - 1):
            strategy = SelectOnly("a", 1, strategy)
    except InvalidStrategy as error:
        return error
    return strategy
