"""Inputs of chunks, as far as they are known."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.documents.chunk_inputs import ChunkInputs
from opsq.errors import Unreachable


class Away:
    """A daemon that answers with an error."""

    store_url = "/nowhere"

    def __init__(self, error: Unreachable) -> None:
        self._error = error

    def next_id(self) -> int:
        return 1

    def call(self, *_: object) -> Any:
        raise self._error


def test_input_of_a_chunk_at_a_shard_that_is_away_is_unknown() -> None:
    """So that what the others have is listed nevertheless."""
    assert ChunkInputs(Away(Unreachable(cause="content_unknown", shards="shard 1"))).of(1, 0) is None
    with pytest.raises(Unreachable):
        ChunkInputs(Away(Unreachable("No daemon answers."))).of(1, 0)
