"""The simulation of many shards (benchmarks/scale_model.py) counts as many messages as a few real daemons exchange.

A tenth more or less is allowed: which of several shards answers first is chance.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from harness.entry import Context
from scale_model import AT_ONCE, BUSY, SPARSE, counted, simulated

SHARDS, CONSUMERS, CHUNKS = 4, 6, 12


def test_chunk_takes_as_many_messages_as_simulated(tmp_path: Path) -> None:
    real = counted(Context(tmp_path, is_quick=True), SHARDS, CONSUMERS, CHUNKS)
    model = simulated(SHARDS, CONSUMERS, CHUNKS)
    assert model[SPARSE] == pytest.approx(real[SPARSE], rel=0.1)
    assert model[AT_ONCE] == pytest.approx(real[AT_ONCE], rel=0.1)
    assert model[BUSY] == pytest.approx(real[BUSY], rel=0.1)


def test_chunk_for_consumers_that_wait_takes_three_messages_a_shard_and_two_or_three_more() -> None:
    assert 3 * SHARDS + 2 <= simulated(SHARDS, CONSUMERS, CHUNKS)[SPARSE] <= 3 * SHARDS + 3
