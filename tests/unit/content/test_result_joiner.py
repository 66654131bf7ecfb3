"""Results one after the other in pieces, and ranges of all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.content.local_store import LocalStore
from opsq.content.result_joiner import Result, join_pieces, range_of
from opsq.errors import ContentMissing

FOLDER = "0" * 32
STORED = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """A store with one object of results."""
    store = LocalStore(tmp_path_factory.mktemp("store"))
    store.write_object(f"{FOLDER}/results/a", STORED, is_durable=False)
    return store


PLACES = st.tuples(st.integers(0, 2_000_000), st.integers(0, 3_000_000)).map(lambda place: ("results/a", *place))
RESULTS = st.lists(st.binary(max_size=50) | PLACES, max_size=8)


def whole(results: list[Result]) -> bytes:
    """All bytes of results."""
    return b"".join(
        STORED[result[1] : result[1] + result[2]] if isinstance(result, tuple) else bytes(result) for result in results
    )


@given(results=RESULTS)
def test_pieces_are_all_bytes_and_bounded(store: LocalStore, results: list[Result]) -> None:
    pieces = list(join_pieces(results, store, FOLDER))
    assert b"".join(pieces) == whole(results)
    assert max(map(len, pieces)) < 2 << 20


@given(results=RESULTS, low=st.integers(0, 4_000_000), size=st.integers(1, 4_000_000))
def test_a_range_is_that_part_of_all_bytes(store: LocalStore, results: list[Result], low: int, size: int) -> None:
    found = join_pieces(range_of(results, low, low + size), store, FOLDER)
    assert b"".join(found) == whole(results)[low : low + size]


def test_what_comes_before_a_missing_result_is_given(store: LocalStore) -> None:
    pieces = join_pieces([b"a", ("results/b", 0, 9)], store, FOLDER)
    assert next(pieces) == b"a"
    with pytest.raises(ContentMissing):
        next(pieces)
