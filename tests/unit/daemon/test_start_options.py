"""Whom a daemon names to those who want to restart it."""

from __future__ import annotations

import os
import plistlib
from pathlib import Path

import pytest

from opsq import process_one
from opsq.daemon.start_options import note_start, start_in_use
from opsq.settings import load

AGENT = Path(__file__).parents[3] / "examples" / "launchd" / "org.opsq.daemon.plist"


def command(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a daemon that has just started leaves; it would have the lock."""
    settings = load({"state_dir": str(state_dir)})
    note_start(settings)
    monkeypatch.setattr("opsq.daemon.start_options.is_locked", lambda path: True)
    return start_in_use(settings).restart_command


def test_agent_of_launchd_is_restarted_by_launchctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label = plistlib.loads(AGENT.read_bytes())["Label"]
    monkeypatch.setenv("XPC_SERVICE_NAME", label)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(os, "getuid", lambda: 501)
    assert command(tmp_path, monkeypatch) == f"launchctl kickstart -k gui/501/{label}"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert command(tmp_path, monkeypatch) == f"launchctl kickstart -k system/{label}"


def test_daemon_of_a_terminal_of_macos_is_restarted_by_opsq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XPC_SERVICE_NAME", "0")
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert command(tmp_path, monkeypatch) == ""


def test_daemon_of_a_container_is_restarted_with_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_one, "is_child", True)
    assert command(tmp_path, monkeypatch).startswith("podman restart")
