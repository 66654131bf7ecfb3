"""Every recipe of opsq-admin(7) is run, with other paths, and without what would change this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "man" / "opsq-admin.7").read_text(encoding="utf-8")
BLOCKS = [block.replace("\\-", "-") for block in re.findall(r"(?ms)^\.EX\n(.*?)^\.EE", PAGE)]
(
    INSTALL,
    SHARE,
    UPGRADE,
    GO_BACK,
    MOVE,
    BACK_UP,
    RESTORE,
    SERVE,
    TUNNEL,
    MAKE_ROOM,
    LIMIT,
    WATCH,
    DAMAGED,
    LET_GO,
) = BLOCKS
OLD_SCHEMA = 9
LINES = b"".join(b"%d " % number + b"x" * 5000 + b"\n" for number in range(4))
"""Too long to be in the database: a chunk each in the content."""


def here(opsq, block: str) -> str:
    """A block with the paths of this test."""
    places = {"/srv/opsq": opsq.state_dir, "/mnt/new/opsq": opsq.folder / "new", "/shared/opsq": opsq.folder / "shared"}
    places |= {"/backup": opsq.folder / "backup", "/srv": opsq.folder}
    for place, ours in places.items():
        block = re.sub(rf"{place}\b", str(ours), block)
    return block


def run(opsq, block: str) -> str:
    """Run a block in which each line has to succeed."""
    ran = opsq.shell(f"set -e; {here(opsq, block)}")
    assert ran.status == 0, ran
    return ran.text


def without_pip(block: str) -> str:
    """A block that installs nothing; it must be one that would."""
    changed = re.sub(r"(?m)^/opt/opsq/bin/pip install .*$", ":", block)
    assert changed != block
    return changed


@pytest.fixture
def filled(queue):
    """A queue with a submission of four chunks, of which two are done."""
    queue.filled = queue.ok("submit", "-", "--lines", "1", stdin=LINES).text
    assert queue("consume", "--max-chunks", "2", "--", "cat").status == 0
    return queue


def is_half_done(opsq, submission: str) -> bool:
    """Whether a daemon runs that has two chunks of the submission done, and the content of the others."""
    shown = opsq.ok("show", submission, "--json").json
    assert (shown["completed"], shown["waiting"]) == (2, 2)
    assert opsq("consume", "--until-empty", "-s", f"SelectOnly(submission={submission})", "--", "cat").status == 0
    return opsq.ok("results", submission).out == LINES


def test_an_installed_opsq_is_on_every_path_with_its_manual(opsq):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(opsq.folder)]
    subprocess.run(build, cwd=REPOSITORY, capture_output=True, check=True)
    [wheel] = opsq.folder.glob("*.whl")
    (opsq.folder / "local" / "bin").mkdir(parents=True)
    script = INSTALL.replace("/opt/opsq", f"{opsq.folder}/opt").replace("/usr/local", f"{opsq.folder}/local")
    script = script.replace("python3 -m", f"{sys.executable} -m")
    script = script.replace("pip install opsq", f"pip install --quiet --no-deps --no-index {wheel}")
    assert opsq.shell(f"set -e; {script}").status == 0
    libraries = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    told = opsq.shell(f"PYTHONPATH={libraries} {opsq.folder}/local/bin/opsq --version")
    assert told.text.startswith("opsq ")
    assert (opsq.folder / "local" / "share" / "man" / "man7" / "opsq-admin.7").is_file()


def test_unit_user_and_setting_of_a_shared_queue_are_those_that_there_are(opsq):
    tools = opsq.folder / "tools"
    tools.mkdir()
    for name in ("useradd", "usermod", "systemctl", "cp"):
        (tools / name).write_text('#!/bin/sh\necho "${0##*/} $*" >> "$OPSQ_STATE_DIR.told"\n')
        (tools / name).chmod(0o755)
    run(opsq, f"PATH={tools}:$PATH\n{SHARE}")
    told = Path(f"{opsq.state_dir}.told").read_text()
    assert "useradd --system --user-group opsq\n" in told
    assert "systemctl enable --now opsq\n" in told
    unit = (REPOSITORY / "examples" / "systemd" / "opsq.service").read_text()
    assert "User=opsq" in unit
    assert "StateDirectory=opsq" in unit
    [name, value] = re.findall(r"Environment=(\w+)=(\d+)", SHARE)[0]
    started = opsq("start", environ={name: value})
    assert started.status == 0
    assert (opsq.state_dir / "opsq.sock").stat().st_mode & 0o777 == int(value, 8)
    assert opsq("stop").status == 0


def test_an_upgrade_keeps_what_is_there_and_the_way_back_is_the_copy_it_made(filled):
    run(filled, without_pip(UPGRADE))
    assert is_half_done(filled, filled.filled)
    filled.ok("stop")
    for file in filled.state_dir.glob("opsq.sqlite*"):
        file.unlink()
    stored = REPOSITORY / "tests" / "compat" / "data" / f"schema-{OLD_SCHEMA}.sqlite"
    shutil.copy(stored, filled.state_dir / "opsq.sqlite")
    filled.ok("start")
    [copy] = filled.state_dir.glob(f"opsq.sqlite.v{OLD_SCHEMA}-*.bak")
    steps, start = without_pip(GO_BACK).split(":\n")
    run(filled, steps)
    back = apsw.Connection(str(filled.state_dir / "opsq.sqlite"), flags=apsw.SQLITE_OPEN_READONLY)
    assert back.execute("PRAGMA user_version").get == OLD_SCHEMA
    back.close()
    assert not copy.exists()
    run(filled, start)  # which is not the old version here, and migrates once more, perhaps in the same second
    assert len([*filled.state_dir.glob(copy.name.rpartition("-")[0] + "-*.bak")]) == 1


def test_a_moved_folder_goes_on_elsewhere(filled):
    (filled.folder / "new").parent.mkdir(exist_ok=True)
    run(filled, MOVE)
    shutil.rmtree(filled.state_dir)
    filled.environ["OPSQ_STATE_DIR"] = str(filled.folder / "new")
    try:
        assert is_half_done(filled, filled.filled)
    finally:
        filled.ok("stop")


def test_a_backup_made_while_work_continues_is_restored(filled):
    (filled.folder / "backup").mkdir()
    run(filled, BACK_UP)
    later = filled.submit_lines(1)
    assert filled("consume", "--until-empty", "--", "cat").status == 0
    run(filled, BACK_UP)
    run(filled, BACK_UP)
    assert filled.ok("show", later, "--json").json["state"] == "completed"
    filled.ok("stop")
    shutil.rmtree(filled.state_dir)
    run(filled, RESTORE)
    assert filled.ok("results", filled.filled).out == LINES


def test_a_damaged_database_is_replaced_by_the_backup_and_its_content_kept(filled):
    (filled.folder / "backup").mkdir()
    run(filled, BACK_UP)
    filled.ok("stop")
    (filled.state_dir / "opsq.sqlite").write_bytes(b"no database at all" * 1000)
    assert filled("start").status == 6
    run(filled, DAMAGED.replace("opsq stop\n", ""))
    assert is_half_done(filled, filled.filled)


def test_clients_behind_a_tunnel_use_a_named_token_and_a_shared_store(queue, free_tcp_port):
    (queue.folder / "shared").mkdir()
    place = f"127.0.0.1:{free_tcp_port}"
    run(queue, SERVE.replace("127.0.0.1:7411", place))
    elsewhere = f"export OPSQ_STATE_DIR={queue.folder}/elsewhere"
    assert "ssh -fN -L 7411:127.0.0.1:7411 " in TUNNEL
    listed = TUNNEL.split("\n", 1)[1].replace("127.0.0.1:7411", place)
    run(queue, f"{elsewhere}; {listed}")
    (queue.folder / "lines").write_bytes(LINES)
    at = f"--address {place} --token-file laptop.token"
    submission = run(queue, f"{elsewhere}; opsq submit lines --lines 1 {at}")
    run(queue, f"{elsewhere}; opsq consume --until-empty {at} -- cat")
    assert queue.ok("results", submission).out == LINES


def test_room_is_made_by_hand(filled):
    assert filled("consume", "--until-empty", "--", "cat").status == 0
    run(filled, MAKE_ROOM.replace("2d", "0s").replace("7d", "0s"))
    assert filled.ok("list", "--json").json["submissions"] == []


def test_a_customer_is_limited(queue):
    run(queue, LIMIT)
    assert queue.ok("limits", "--json").json


def test_what_is_to_be_watched_says_why_nothing_is_handed_out(filled):
    filled.ok("pause", "--all")
    doctor, held_back, metrics = WATCH.splitlines()
    assert filled.shell(doctor).status in {0, 5}
    assert "| jq .held_back" in held_back
    assert filled.ok("status", "--json").json["held_back"][0]["code"] == "paused"
    assert "opsq_" in run(filled, metrics)


def test_a_consumer_lets_go(queue):
    queue.submit_lines(1)
    queue.reserve()
    consumers = queue.ok("status", "--json").json["consumers"]
    [holder] = [each["consumer"] for each in consumers if each["reserved"]]
    run(queue, LET_GO.replace("ID", holder))
    assert queue.reserve()
