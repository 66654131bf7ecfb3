"""A person learns that the daemon has been away for a while, and that it is back; nothing is said of a restart."""

from types import SimpleNamespace

import pytest

from opsq.runner import outage
from opsq.runner.outage import Absence


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock, a connection and what was said; `see` looks at a time, with a connection or without."""
    found = SimpleNamespace(now=0.0, fd=3, said=[])
    monkeypatch.setattr(outage.time, "monotonic", lambda: found.now)
    told = Absence(SimpleNamespace(say=found.said.append), SimpleNamespace(fileno=lambda: found.fd))  # type: ignore[arg-type]

    def see(now: float, fd: int) -> list[float]:
        found.now, found.fd = now, fd
        told.see_to()
        return list(told.instants())

    found.see = see
    return found


def test_restart_is_not_told(scene: SimpleNamespace):
    assert scene.see(1.0, 3) == []
    assert scene.see(2.0, -1) == [2.0 + outage.ABSENT_S]
    assert scene.see(3.0, 4) == []
    assert scene.see(9.0, -1) == [9.0 + outage.ABSENT_S]
    assert scene.said == []


def test_absence_is_told_once_and_so_is_its_end(scene: SimpleNamespace):
    scene.see(0.0, -1)
    assert scene.see(outage.ABSENT_S, -1) == []
    scene.see(100.0, -1)
    assert len(scene.said) == 1
    assert "does not answer" in scene.said[0]
    scene.see(101.0, 5)
    scene.see(102.0, 5)
    assert scene.said[1:] == ["The daemon answers again."]
