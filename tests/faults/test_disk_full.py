"""A full disk: what cannot be stored is refused, what was acknowledged stays, and work resumes when there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from daemons import DEADLINE_S, Client, connected, end, error_of, kill, log_with, running, settings_of, state_of
from opsq.daemon import lifecycle
from opsq.daemon.audit_file import acts
from opsq.ids import mask_indexes
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database
from opsq.wire.messages import (
    Cancel,
    Changed,
    Complete,
    Completed,
    Completion,
    Describe,
    Described,
    ErrorReply,
    HeldChunks,
    NewSubmission,
    Remove,
    Reply,
    Request,
    Reserve,
    Reserved,
    Show,
    Shown,
    Submit,
    Submitted,
    Weight,
)
from waiting import wait_until

BALLAST_BYTES = 2 << 20


def fill(client: Client, size_bytes: int) -> tuple[list[int], NewSubmission]:
    """Submit until the disk is full; the ids that were acknowledged, and what was refused."""
    stored = []
    for number in range(10, 10_000):
        new = NewSubmission(os.urandom(16), 1, content=os.urandom(size_bytes))
        reply = client.ask(Submit(number, [new]))
        if isinstance(reply, ErrorReply):
            assert reply.code == "storage_full", reply
            assert reply.error().hint, "a refusal says what to do next"
            return stored, new
        assert isinstance(reply, Submitted)
        stored.append(reply.created[0].submission_id)
    raise AssertionError("the disk never became full")


def opsq(*words: str) -> subprocess.CompletedProcess[str]:
    """A verb, as a shell runs it."""
    return subprocess.run([sys.executable, "-m", "opsq", *words], capture_output=True, text=True, timeout=120)


def held(reserved: Reply) -> list[HeldChunks]:
    assert isinstance(reserved, Reserved), reserved
    assert reserved.grants, reserved
    return [
        HeldChunks(g.submission_id, g.block, g.mask, reserved.reservation_id, g.attempt, g.mask, g.mac)
        for g in reserved.grants
    ]


def is_sound(settings: Settings) -> bool:
    """Nothing is half there."""
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()
    return True


def test_full_disk_refuses_submits_keeps_the_rest_and_recovers_without_a_restart(
    small_disk: Path | None,
) -> None:
    """Handing out pauses, and a completion that was refused can be sent again."""
    if small_disk is None:
        return
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    with running(small_disk) as settings, connected(settings) as client:
        first = client.ask(Submit(2, [NewSubmission(os.urandom(16), 2, content=b"kept")]))
        assert isinstance(first, Submitted)
        reserved = held(client.ask(Reserve(3, 1, "OldestFirst")))
        stored, refused = fill(client, 60_000)
        more, _ = fill(client, 1)
        stored += more
        assert state_of(settings).state == "full"
        assert error_of(client.ask(Reserve(4, 1))).code == "storage_full"
        complete = Complete(5, [Completion(one) for one in reserved])
        reply = client.ask(complete)  # it may find room in the log where a submission did not
        assert reply == Completed(5) or error_of(reply).code == "storage_full"
        log_with(settings, "no chunks are handed out until there is room")
        described = client.ask(Describe(6, [first.created[0].submission_id, *stored[-3:]]))
        assert isinstance(described, Described), described
        assert len(described.submissions) == 4
        ballast.unlink()
        wait_until(lambda: state_of(settings).state == "running", 180, "the daemon finds that there is room")
        assert client.ask(complete) == Completed(5)
        again = client.ask(Submit(7, [refused]))
        assert isinstance(again, Submitted), again
        assert again.created[0].is_new, "the refused submission was half there"
        for number, submission_id in enumerate([first.created[0].submission_id, *stored], 100):
            assert isinstance(client.ask(Show(number, submission_id)), Shown)
    assert is_sound(settings)


def test_body_that_a_disk_cannot_hold_is_refused_over_http_and_nothing_is_left(small_disk: Path | None) -> None:
    if small_disk is None:
        return
    with running(small_disk) as settings:
        command = [
            sys.executable,
            "-m",
            "opsq",
            "--state-dir",
            settings.state_dir,
            "gateway",
            "--listen",
            "127.0.0.1:0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
            try:
                assert gateway.stdout is not None
                url = f"{gateway.stdout.readline().decode().strip()}/api/v1/submissions"
                for body in (b"line\n" * 4_000_000, iter([b"line\n" * 400_000] * 10)):  # its length is known, or not
                    reply = httpx.post(url, content=body, timeout=DEADLINE_S, trust_env=False)
                    assert (reply.status_code, reply.headers["content-type"]) == (507, "application/problem+json")
                assert sorted(os.listdir(f"{settings.state_dir}/content")) == ["store-id", "store-owner"]
                assert httpx.post(url, content=b"line\n" * 9999, timeout=DEADLINE_S, trust_env=False).status_code == 201
            finally:
                gateway.kill()


def test_batch_larger_than_the_page_cache_is_refused_as_a_whole_when_it_spills(small_disk: Path | None) -> None:
    """The error comes from a statement in the middle of the transaction, not from COMMIT."""
    if small_disk is None:
        return
    with running(small_disk, frame_limit_bytes=str(64 << 20)) as settings, connected(settings) as client:
        kept = client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)]))
        assert isinstance(kept, Submitted)
        large = [NewSubmission(os.urandom(16), 1, content=os.urandom(60_000)) for _ in range(500)]
        assert error_of(client.ask(Submit(3, large))).code == "storage_full"
        assert isinstance(client.ask(Show(4, kept.created[0].submission_id)), Shown)
        wait_until(lambda: state_of(settings).state == "running", 180, "there is room for small things")
        assert state_of(settings).total.submissions_count == 1
    assert is_sound(settings)


def test_daemon_on_a_full_disk_says_so_and_starts_when_there_is_room(small_disk: Path | None) -> None:
    """Not a byte left for the first page of the database."""
    if small_disk is None:
        return
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    settings = settings_of(small_disk)
    started = subprocess.run(
        [sys.executable, "-m", "opsq", "--state-dir", str(small_disk), "start"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert started.returncode == 6, started
    assert "Traceback" not in started.stderr
    ballast.unlink()
    try:
        assert lifecycle.start(settings).status == "started"
    finally:
        end(settings)


@pytest.mark.parametrize("is_killed", [False, True])
def test_completions_on_a_full_disk_leave_room_for_what_removes_something(
    small_disk: Path | None, *, is_killed: bool
) -> None:
    """They make the file longer: the log must still fit into it, or it could not start over any more."""
    if small_disk is None:
        return
    with running(small_disk) as settings:
        with connected(settings) as client:
            work = client.ask(Submit(2, [NewSubmission(os.urandom(16), 640)]))
            assert isinstance(work, Submitted)
            reserved = client.ask(Reserve(3, 640, "OldestFirst", lease_s=600.0))
            stored, _ = fill(client, 60_000)
            fill_with_others(small_disk)
            completed_count = 0
            for number, one in enumerate(held(reserved), 1000):
                for index in mask_indexes(0, one.mask):
                    results = msgspec.Raw(msgspec.msgpack.encode([os.urandom(4_000)]))
                    alone = msgspec.structs.replace(one, mask=1 << index)
                    reply = client.ask(Complete(number * 64 + index, [Completion(alone, results)]))
                    if isinstance(reply, ErrorReply):
                        assert reply.code == "storage_full", reply
                    else:
                        completed_count += 1
            assert 0 < completed_count < 640
        if is_killed:
            kill(settings)
            lifecycle.start(settings)
        with connected(settings) as client:
            for number, submission_id in enumerate(stored, 10):
                for request in (Cancel(2 * number, submission_id), Remove(2 * number + 1, submission_id)):
                    reply = wait_until(lambda one=request: accepted(client, one), 60, "there is room for it")
                    assert isinstance(reply, Changed), reply
            wait_until(lambda: state_of(settings).state == "running", 180, "what was removed has made room")
            shown = client.ask(Show(3, work.created[0].submission_id))
            assert isinstance(shown, Shown)
            assert shown.submission.completed_count == completed_count
    assert is_sound(settings)


def accepted(client: Client, request: Request) -> Reply | None:
    """The reply; None while there is no room."""
    reply = client.ask(request)
    return None if isinstance(reply, ErrorReply) and reply.code == "storage_full" else reply


def fill_with_others(disk: Path, left_bytes: int = 0) -> Path:
    """A file of somebody else's that takes all but so much of the disk."""
    path = disk / "somebody's"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    os.truncate(path, path.stat().st_size - left_bytes)
    return path


def fill_log(disk: Path) -> None:
    """A log that has taken all the rest."""
    with contextlib.suppress(OSError), (disk / "opsq.log").open("ab", buffering=0) as file:
        while file.write(b"2026-11-29T00:00:00.000Z INFO a line\n" * 100):
            pass


@pytest.mark.parametrize("is_killed", [False, True])
def test_start_on_a_full_disk_with_a_full_log_says_what_would_free_how_much(
    small_disk: Path | None, *, is_killed: bool
) -> None:
    """It starts, in the room that it keeps; `start`, `status` and `doctor` say that there is no other."""
    if small_disk is None:
        return
    place = ("--state-dir", str(small_disk))
    with running(small_disk) as settings:
        with connected(settings) as client:
            kept = client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)]))
            assert isinstance(kept, Submitted)
        fill_with_others(small_disk, 1 << 20)
        if is_killed:
            fill_log(small_disk)
            kill(settings)
        else:
            lifecycle.stop(settings)
            fill_log(small_disk)
        started = opsq(*place, "start")
        assert started.returncode == 0, started
        assert "The storage is full" in started.stderr, started
        assert "tee opsq.log < /dev/null` empties logs of about" in started.stderr, started
        assert "Files that are not opsq's take about" in started.stderr, started
        assert '"state":"full"' in opsq(*place, "--json", "start").stdout
        assert "state\tfull\n" in opsq(*place, "status").stdout
        doctor = opsq(*place, "doctor")
        assert "empties logs" in doctor.stdout, doctor
        emptied = subprocess.run(["sh", "-c", f"cd {small_disk} && tee opsq.log < /dev/null"])
        assert emptied.returncode == 0
        wait_until(lambda: state_of(settings).state == "running", 180, "the log has given its room back")
        with connected(settings) as client:
            assert isinstance(client.ask(Show(3, kept.created[0].submission_id)), Shown)
    assert is_sound(settings)


@pytest.mark.parametrize("missing", ["opsq.ballast", "content/store-id", "content/store-owner", "opsq.lock", "token"])
def test_start_without_a_single_block_starts_or_says_what_would_free_how_much(
    small_disk: Path | None, missing: str
) -> None:
    """Whatever it would have to make first."""
    if small_disk is None:
        return
    settings = settings_of(small_disk, listen="127.0.0.1:0")
    lifecycle.start(settings)
    lifecycle.stop(settings)
    for name in {"opsq.ballast", missing}:
        (small_disk / name).unlink()
    others = fill_with_others(small_disk)
    started = opsq("--state-dir", str(small_disk), "start", "--listen", "127.0.0.1:0")
    assert "Traceback" not in started.stderr, started
    if started.returncode:
        assert started.returncode == 6, started
        assert "here is no room for" in started.stderr or "storage is full" in started.stderr, started
        assert "Files that are not opsq's take about" in started.stderr, started
    others.unlink()
    try:
        lifecycle.start(settings)
        wait_until(lambda: state_of(settings).state == "running", 180, "there is room")
    finally:
        end(settings)
    assert is_sound(settings)


def test_daemon_that_cannot_write_its_log_ends_as_if_it_could(small_disk: Path | None) -> None:
    """In the foreground: exit 0 and no traceback; and what is audited after it is in the audit."""
    if small_disk is None:
        return
    settings = settings_of(small_disk)
    words = [sys.executable, "-m", "opsq", "--state-dir", str(small_disk), "start", "--foreground"]
    daemon = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: Path(settings.socket).exists(), DEADLINE_S, "it serves")
        others = fill_with_others(small_disk)
        fill_log(small_disk)
        with connected(settings) as client:
            for number in range(10, 200):
                client.ask(Weight(number, "key", "x" * 700, number))
            others.unlink()
            wait_until(lambda: state_of(settings).state == "running", 180, "there is room")
            assert client.ask(Weight(300, "key", "last", 3)) == Changed(300, 1)
            fill_with_others(small_disk)
            fill_log(small_disk)
        lifecycle.stop(settings)
        _, errors = daemon.communicate(timeout=DEADLINE_S)
        assert daemon.returncode == 0, errors
        assert "Traceback" not in errors
    finally:
        daemon.kill()
    assert [act.act for act in acts(settings.audit_path) if "last" in act.what] == ["Weight"]


def test_submit_of_a_file_larger_than_the_disk_exits_6_and_leaves_nothing(
    small_disk: Path | None, runtime_dir: Path
) -> None:
    """Path and free bytes are named; the content that was written goes; what was there before can be read."""
    if small_disk is None:
        return

    small, large = runtime_dir / "small", runtime_dir / "large"
    small.write_bytes(b"kept\n" * 2000)
    large.write_bytes((b"x" * 99 + b"\n") * 200_000)
    with running(small_disk):
        place = ("--state-dir", str(small_disk))
        kept = opsq(*place, "submit", "--bytes", "4K", str(small))
        assert kept.returncode == 0, kept
        before = sorted(path.name for path in (small_disk / "content").iterdir())
        refused = opsq(*place, "submit", "--bytes", "64K", str(large))
        assert refused.returncode == 6, refused
        assert refused.stdout == ""
        assert str(small_disk) in refused.stderr, refused.stderr
        assert "free" in refused.stderr, refused.stderr
        assert sorted(path.name for path in (small_disk / "content").iterdir()) == before
        consumed = opsq(*place, "consume", "--until-empty", "--", "cat")
        assert consumed.returncode == 0, consumed
        assert opsq(*place, "results", kept.stdout.strip()).stdout == small.read_text()


def test_disk_without_inodes_is_not_said_to_have_no_bytes(small_disk: Path | None, runtime_dir: Path) -> None:
    """Half of the disk is free, and no file can be made: what removes files goes on."""
    if small_disk is None:
        return
    given = runtime_dir / "input"
    given.write_bytes(b"a line\n" * 20_000)
    with running(small_disk) as settings:
        place = ("--state-dir", str(small_disk))
        first = opsq(*place, "submit", str(given))
        assert first.returncode == 0, first
        with contextlib.suppress(OSError):
            for number in range(1_000_000):
                (small_disk / f"{number}").touch()
        refused = opsq(*place, "submit", str(given))
        assert refused.returncode == 6, refused
        assert "no inodes left" in refused.stderr, refused.stderr
        first_id = first.stdout.strip()
        assert opsq(*place, "cancel", first_id).returncode == 0
        assert opsq(*place, "rm", first_id).returncode == 0
        again = wait_until(lambda: opsq(*place, "submit", str(given)).returncode == 0, 60, "its inodes are free")
        assert again
    assert is_sound(settings)
