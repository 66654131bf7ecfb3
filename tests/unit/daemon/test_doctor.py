"""What `opsq doctor` makes of the state that a daemon reports."""

from types import SimpleNamespace
from typing import Any

import pytest

from opsq.daemon import doctor


def test_log_that_a_foreign_reader_keeps_is_wrong_and_says_how_to_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(pid=1, server="0.1.0", state="running", consumers=[], wal_bytes=150 << 20, wal_kept_s=200.0)
    monkeypatch.setattr(doctor, "fetch_state", lambda settings, timeout_s: state)
    settings: Any = SimpleNamespace(database_path="/queue/opsq.sqlite")
    found = {fact.check: fact for fact in doctor._daemon(settings)}
    assert not found["log"].is_ok
    assert "150.0 MiB" in found["log"].detail
    assert "200s" in found["log"].detail
    assert "fuser -v /queue/opsq.sqlite" in found["log"].advice
