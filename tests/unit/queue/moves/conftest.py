"""Two engines for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.queue.moves.pair import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()
