"""Where settings come from, and what follows from them."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import platformdirs
import platformdirs.macos
import pytest

from opsq import settings
from opsq.errors import InputUnreadable, UsageError
from opsq.paths import SOCKET_PATH_LIMIT_BYTES
from opsq.settings import SETTINGS, load


@pytest.fixture(autouse=True)
def system_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for /etc/opsq/opsq.toml."""
    path = home / "system.toml"
    monkeypatch.setattr(settings, "SYSTEM_FILE", str(path))
    return path


@pytest.fixture
def user_file(home: Path) -> Path:
    path = home / ".config/opsq/opsq.toml"
    path.parent.mkdir(parents=True)
    return path


def test_flag_beats_environment_beats_files_beat_default(user_file: Path, system_file: Path) -> None:
    system_file.write_text('drain_s = "4s"\nlog_count = 4\nmax_lost = 4\n')
    user_file.write_text('drain_s = "3s"\nlog_count = 3\n')
    environ = {**os.environ, "OPSQ_DRAIN_S": "2s"}
    assert load({"drain_s": "1s"}, environ).drain_s == 1
    found = load({"drain_s": None}, environ)
    assert (found.drain_s, found.source("drain_s")) == (2, "OPSQ_DRAIN_S")
    assert (found.log_count, found.source("log_count")) == (3, str(user_file))
    assert (found.max_lost, found.source("max_lost")) == (4, str(system_file))
    assert (found.max_attempts, found.source("max_attempts")) == (5, "default")
    assert load({"drain_s": 1.5}, environ).source("drain_s") == "--drain-s"


def test_every_setting_can_be_written_in_the_file_as_it_is_printed(user_file: Path) -> None:
    """`opsq config` prints what the file takes."""
    printed = load().texts()
    user_file.write_text("".join(f'{name} = "{text}"\n' for name, text in printed.items()))
    assert load().texts() == printed
    assert set(printed) == {setting.name for setting in SETTINGS}


def test_toml_numbers_and_booleans_count_as_they_are(user_file: Path) -> None:
    user_file.write_text(
        "reservation_s = 90\nsocket_mode = 0o660\nlisten_force = true\nbackoff_factor = 1.5\nlog_bytes = 5000\n"
    )
    found = load()
    assert (found.reservation_s, found.socket_mode, found.listen_force) == (90, 0o660, True)
    assert (found.backoff_factor, found.log_bytes) == (1.5, 5000)


def test_unknown_key_names_file_and_nearest(user_file: Path) -> None:
    user_file.write_text("max_atempts = 3\n")
    with pytest.raises(UsageError, match=r"opsq\.toml has an unknown setting 'max_atempts'.*'max_attempts'"):
        load()


def test_broken_file_names_path_and_line(user_file: Path) -> None:
    user_file.write_text("drain_s = \n")
    with pytest.raises(UsageError, match=r"opsq\.toml is not TOML: .*line 1"):
        load()


def test_folder_in_place_of_the_file_is_unreadable(user_file: Path) -> None:
    user_file.mkdir()
    with pytest.raises(InputUnreadable, match=r"opsq\.toml: Is a directory"):
        load()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("socket_mode", "0999"),
        ("socket_mode", "1777"),
        ("drain_s", "soon"),
        ("frame_limit_bytes", "1"),
        ("connection_limit", "0"),
        ("connection_limit", "1.5"),
        ("backoff_factor", "nan"),
        ("durability", "fast"),
        ("listen", "7411"),
        ("listen", "::1:7411"),
        ("listen", "localhost:70000"),
        ("listen_force", "perhaps"),
        ("state_dir", ""),
    ],
)
def test_value_out_of_range_names_setting_and_source(name: str, given: str) -> None:
    with pytest.raises(UsageError, match=f"{name} from --{name.replace('_', '-')}: "):
        load({name: given})


def test_relative_path_in_a_file_is_refused(user_file: Path) -> None:
    """A file is read from many working folders, so a relative path in it has no meaning."""
    user_file.write_text('state_dir = "here"\n')
    with pytest.raises(UsageError, match="not an absolute path"):
        load()


def test_relative_flag_is_taken_from_the_working_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    assert load({"state_dir": "here"}).state_dir == f"{home}/here"


def test_state_folder_follows_the_xdg_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", "/h")
    assert load().state_dir == "/h/.local/state/opsq"
    monkeypatch.setenv("XDG_STATE_HOME", "/x/")
    assert (load().state_dir, load().source("state_dir")) == ("/x/opsq", "XDG_STATE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert (load().state_dir, load().source("state_dir")) == ("/h/.local/state/opsq", "HOME")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/4711")
    assert load().socket == "/h/.local/state/opsq/opsq.sock"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("folder", ["/h", "/h/", "/"])
def test_folders_on_linux_are_those_of_platformdirs(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", folder)
    found = platformdirs.PlatformDirs("opsq")
    assert load().state_dir == found.user_state_dir
    assert settings.config_paths()[0] == f"{found.user_config_dir}/opsq.toml"


def test_macos_keeps_state_and_settings_where_its_programs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platformdirs, "PlatformDirs", platformdirs.macos.MacOS)
    assert load().state_dir == "/h/Library/Application Support/opsq"
    assert settings.config_paths()[0] == "/h/Library/Application Support/opsq/opsq.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/x")
    assert settings.config_paths()[0] == "/x/opsq/opsq.toml"


def test_root_without_any_variable_uses_the_system_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """USER and LOGNAME may be absent or wrong: only the kernel's uid counts."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("HOME")
    assert load().state_dir == "/var/lib/opsq"
    monkeypatch.setenv("HOME", "/root")
    monkeypatch.setenv("USER", "nobody")
    assert load().state_dir == "/var/lib/opsq"
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert load().state_dir == "/x/opsq"


def test_home_unset_comes_from_the_password_database(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("geteuid", "getuid"):
        monkeypatch.setattr(os, name, lambda: 1)
    monkeypatch.delenv("HOME")
    found = load()
    assert found.state_dir == pwd.getpwuid(1).pw_dir.rstrip("/") + "/.local/state/opsq"
    assert found.source("state_dir") == "password database"


def test_no_home_at_all_names_three_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("geteuid", "getuid"):
        monkeypatch.setattr(os, name, lambda: 3_999_999_999)
    monkeypatch.delenv("HOME")
    with pytest.raises(UsageError, match=r"--state-dir, OPSQ_STATE_DIR, HOME"):
        load()


def test_long_state_folder_falls_back_to_a_short_socket(runtime_dir: Path) -> None:
    """Both sides compute the same path, whichever way they spell the folder."""
    deep = runtime_dir / ("d" * 100)
    deep.mkdir()
    link = runtime_dir / ("l" * 100)
    link.symlink_to(deep)
    socket = load({"state_dir": str(deep)}).socket
    assert socket.startswith(f"/tmp/opsq-{deep.stat().st_uid}/")
    assert len(socket) <= SOCKET_PATH_LIMIT_BYTES
    assert load({"state_dir": str(link)}).socket == socket
    assert load({"state_dir": f"{deep}/../{deep.name}"}).socket == socket
    assert load({"state_dir": str(runtime_dir / ("e" * 100))}).socket != socket


def test_long_explicit_socket_is_refused_with_limit_and_length() -> None:
    with pytest.raises(UsageError, match=rf"OPSQ_SOCKET has 203 bytes.* {SOCKET_PATH_LIMIT_BYTES}: .*--socket"):
        load(environ={**os.environ, "OPSQ_SOCKET": "/tmp/" + "s" * 198})


def test_explicit_socket_wins_and_says_where_it_came_from() -> None:
    environ = {**os.environ, "OPSQ_SOCKET": "/run/a.sock"}
    assert load(environ=environ).socket == "/run/a.sock"
    assert load(environ=environ).source("socket") == "OPSQ_SOCKET"
    assert load({"socket": "/run/b.sock"}, environ).source("socket") == "--socket"
    assert load({"state_dir": "/s"}).source("socket") == "state_dir (--state-dir)"


def test_store_is_always_a_url() -> None:
    assert load({"state_dir": "/a%b"}).store == "file:///a%25b/content"
    assert load({"store": "/mnt/x"}).store == "file:///mnt/x"
    assert load({"store": "s3://bucket/prefix"}).store == "s3://bucket/prefix"


@pytest.mark.parametrize(
    "names",
    [
        {"XDG_CONFIG_HOME": "/none", "OPSQ_STATE_DIR": "/none"},
        pytest.param(
            {"HOME": "/none"}, marks=pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
        ),
    ],
)
def test_only_cheap_modules_are_loaded_where_the_environment_names_the_folders(names: dict[str, str]) -> None:
    """The hot verbs load the settings at every process start; what platformdirs imports doubles the time that takes."""
    heavy = {"pathlib", "tomllib", "difflib", "hashlib", "logging", "asyncio", "socket", "subprocess", "pytimeparse2"}
    heavy.add("platformdirs")
    check = f"assert {heavy}.isdisjoint(sys.modules)"
    code = f"import os, sys, opsq.settings as s; {check}; os.geteuid = lambda: 4711; s.load(); {check}"
    environ = {"PYTHONPATH": os.pathsep.join(sys.path), **names}
    run = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True)
    assert run.returncode == 0, run.stderr
