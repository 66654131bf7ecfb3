"""Gives the tests of the engine their rig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.model.rig import Rig


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """An engine on a file of its own, closed afterwards; the file must be sound by then."""
    rig = Rig(runtime_dir)
    yield rig
    rig.settle()
    assert rig.broken_rules() == []
    rig.close()
