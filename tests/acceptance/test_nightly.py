"""nightly.sh of examples/ on the nights on which cron jobs go wrong; a full disk is in tests/faults."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from nightly import DEADLINE_S, NIGHTLY, SILENCE, Cron
from users import ALICE, PATH, need_users
from waiting import wait_until

if TYPE_CHECKING:
    from acceptance.conftest import Opsq


@pytest.fixture
def cron(opsq: Opsq) -> Cron:
    """The job, with no daemon yet."""
    return Cron(opsq.state_dir, opsq.folder)


def submissions(opsq: Opsq) -> list[str]:
    """The states of all there are."""
    return [each["state"] for each in opsq.ok("list", "--json").json["submissions"]]


@pytest.mark.parametrize("home", [True, False], ids=["with HOME", "without"])
def test_night_is_done_without_a_daemon(cron: Cron, *, home: bool):
    if not home:
        del cron.environ["HOME"]
    assert cron.run() == SILENCE
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}


def test_night_is_done_with_a_daemon_and_leaves_other_work_alone(cron: Cron, queue: Opsq):
    other = queue.submit_lines(1)
    assert cron.run() == SILENCE
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}
    assert queue.ok("show", other, "--json").json["waiting"] == 1


def test_rerun_after_success_does_nothing(cron: Cron, opsq: Opsq):
    assert cron.run() == SILENCE
    written = os.stat(cron.place / "out/2026-10-25.txt")
    (cron.place / "reports/3.csv").write_bytes(b"late\n")
    opsq.ok("stop")
    assert cron.run() == SILENCE
    assert os.stat(cron.place / "out/2026-10-25.txt") == written
    assert opsq("status").status == 4


def test_hour_that_comes_twice_is_one_night(cron: Cron, opsq: Opsq):
    assert cron.run() == SILENCE
    cron.now += 3600
    cron.program("sort", "exit 9")
    assert cron.run() == SILENCE
    assert list(cron.results) == ["2026-10-25.txt"]
    assert submissions(opsq) == ["completed"]


def test_night_whose_hour_is_left_out_is_done_after_it_and_so_is_the_next(cron: Cron, opsq: Opsq):
    """Cron starts the job late, at 03:00; the next night comes 23 hours and a half later."""
    cron.now = 1_774_746_000
    assert cron.run() == SILENCE
    cron.now += 23 * 3600 + 1800
    assert cron.run() == SILENCE
    assert list(cron.results) == ["2026-03-29.txt", "2026-03-30.txt"]
    assert submissions(opsq) == ["completed", "completed"]


def test_of_two_runs_at_once_the_second_stands_back(cron: Cron, opsq: Opsq):
    begun, go = cron.place / "begun", cron.place / "go"
    cron.program("sort", f"touch {begun}; until [ -e {go} ]; do sleep 0.1; done; exec /usr/bin/sort -u")
    first = cron.start()
    wait_until(begun.exists, DEADLINE_S, "the first run")
    assert cron.run() == SILENCE
    assert cron.results == {}
    go.touch()
    assert first.communicate(timeout=DEADLINE_S) == ("", "")
    assert first.returncode == 0
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}
    assert submissions(opsq) == ["completed"]


def test_two_runs_started_together_end_well_and_print_nothing(cron: Cron):
    both = [cron.start() for _ in range(2)]
    assert [process.communicate(timeout=DEADLINE_S) for process in both] == [("", "")] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}


def test_run_that_was_killed_is_continued(cron: Cron, opsq: Opsq):
    begun = cron.place / "begun"
    cron.program("sort", f"touch {begun}; exec sleep 600")
    first = cron.start()
    wait_until(begun.exists, DEADLINE_S, "the first run")
    os.killpg(first.pid, 9)
    first.communicate(timeout=DEADLINE_S)
    (cron.place / "bin/sort").unlink()
    assert cron.run() == SILENCE
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}
    assert submissions(opsq) == ["completed"]


def test_missing_program_is_exit_127_and_the_next_run_of_the_night_continues(cron: Cron, opsq: Opsq):
    cron.edit("-- sort -u", "-- nosuchprogram")
    status, out, err = cron.run()
    assert (status, out) == (127, "")
    assert "nosuchprogram" in err
    shutil.copy(NIGHTLY, cron.job)
    assert cron.run() == SILENCE
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}
    assert submissions(opsq) == ["completed"]


def test_missing_opsq_is_exit_127_and_named(cron: Cron):
    (cron.place / "bin/opsq").unlink()
    status, out, err = cron.run()
    assert (status, out, list(cron.results)) == (127, "", [])
    assert "opsq" in err


def test_file_that_cannot_be_processed_is_told_and_the_next_run_tries_again(cron: Cron, opsq: Opsq):
    cron.environ["OPSQ_SUBMIT_MAX_ATTEMPTS"] = "1"
    cron.program("sort", "cat > /dev/null; echo bad report >&2; exit 1")
    status, out, err = cron.run()
    assert (status, out) == (1, "")
    assert "bad report" in err
    assert cron.results == {}
    (cron.place / "bin/sort").unlink()
    assert cron.run() == SILENCE
    assert cron.results == {"2026-10-25.txt": b"a\nb\nc\n"}


def test_folder_without_reports_is_told(cron: Cron):
    status, out, err = cron.run("nowhere")
    assert (status, out, list(cron.results)) == (2, "", [])
    assert "Nothing matches" in err


def test_user_without_home_is_told_what_to_set(cron: Cron):
    """One whom the password database does not know either; others have one there."""
    python = need_users()
    cron.place.chmod(0o755)
    del cron.environ["HOME"], cron.environ["OPSQ_STATE_DIR"]
    for name in ("opsq", "date"):
        (cron.place / "bin" / name).unlink()
    cron.program("opsq", f'exec {python} -P -m opsq "$@"')
    cron.environ["PYTHONPATH"] = PATH
    status, out, err = cron.run(user=ALICE, group=ALICE, extra_groups=[])
    assert (status, out) == (2, "")
    assert "Set one of --state-dir, OPSQ_STATE_DIR, HOME." in err
