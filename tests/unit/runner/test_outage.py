"""A person learns that the daemon has been away for a while, and that it is back; nothing is said of a restart."""

from math import inf
from types import SimpleNamespace

import pytest

from opsq.runner import outage
from opsq.runner.outage import Outage


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock, a connection and what was said; `see` looks at a time, with a connection or without."""
    found = SimpleNamespace(now=0.0, fd=3, said=[])
    monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: found.now))
    reported = Outage(SimpleNamespace(say=found.said.append), SimpleNamespace(fileno=lambda: found.fd))  # type: ignore[arg-type]

    def see(now: float, fd: int) -> float:
        found.now, found.fd = now, fd
        reported.tick()
        return reported.next_due(now)

    found.see = see
    return found


def test_restart_is_not_reported(scene: SimpleNamespace):
    assert scene.see(1.0, 3) == inf
    assert scene.see(2.0, -1) == 2.0 + outage.OUTAGE_S
    assert scene.see(3.0, 4) == inf
    assert scene.see(9.0, -1) == 9.0 + outage.OUTAGE_S
    assert scene.said == []


def test_outage_is_reported_once_and_so_is_its_end(scene: SimpleNamespace):
    scene.see(0.0, -1)
    assert scene.see(outage.OUTAGE_S, -1) == inf
    scene.see(100.0, -1)
    assert len(scene.said) == 1
    assert "does not answer" in scene.said[0]
    scene.see(101.0, 5)
    scene.see(102.0, 5)
    assert scene.said[1:] == ["The daemon answers again."]
