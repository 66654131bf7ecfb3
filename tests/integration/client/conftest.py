"""Scripts of a user's that consume by worker processes. It must not know which functions they call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from user_programs import Script, scripts


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Starts a program; it is gone when the test ends."""
    with scripts(tmp_path) as start:
        yield start
