"""What `opsq doctor` says of who may reach a queue, by the modes of its folder and its socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.daemon.doctor_access import group_name, socket_file, state_folder, user_name
from opsq.settings import Settings, load


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """A folder with a socket, for one user."""
    found = load({"state_dir": str(runtime_dir)})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(found.socket)
        os.chmod(found.socket, 0o600)
        yield found


def test_folder_and_socket_of_one_user_are_well(settings: Settings) -> None:
    assert state_folder(settings).is_ok
    assert "may use the queue" not in state_folder(settings).detail
    found = socket_file(settings)
    assert found.is_ok
    owner = f"{user_name(os.geteuid())} and root" if os.geteuid() else "only root"
    assert f"mode 0600: {owner} may connect" in found.detail


def test_shared_folder_is_well_and_the_group_is_named(settings: Settings) -> None:
    os.chmod(settings.socket, 0o660)
    os.chmod(settings.state_dir, 0o710)
    group = group_name(os.stat(settings.state_dir).st_gid)
    found = state_folder(settings)
    assert found.is_ok
    assert f"its group {group} may use the queue" in found.detail
    assert (
        f"root and the group {group_name(os.stat(settings.socket).st_gid)} may connect" in socket_file(settings).detail
    )


def test_shared_socket_in_a_folder_that_the_group_may_not_enter_is_wrong(settings: Settings) -> None:
    os.chmod(settings.socket, 0o660)
    found = socket_file(settings)
    assert not found.is_ok
    assert found.advice == f"Run: chmod g+x {settings.state_dir}"


@pytest.mark.parametrize(
    ("folder", "file", "advice"), [(0o710, 0o600, "700"), (0o755, 0o600, "700"), (0o715, 0o660, "710")]
)
def test_folder_that_more_may_enter_than_connect_is_wrong(
    settings: Settings, folder: int, file: int, advice: str
) -> None:
    os.chmod(settings.socket, file)
    os.chmod(settings.state_dir, folder)
    found = state_folder(settings)
    assert not found.is_ok
    assert found.advice == f"Run: chmod {advice} {settings.state_dir}"


def test_file_in_the_place_of_folder_or_socket_is_said(settings: Settings, tmp_path: Path) -> None:
    os.unlink(settings.socket)
    Path(settings.socket).touch()
    assert "is not a socket" in socket_file(settings).detail
    (tmp_path / "file").touch()
    found = state_folder(load({"state_dir": str(tmp_path / "file")}))
    assert not found.is_ok
    assert "is not a folder" in found.detail
