"""Several users of one machine at one queue: what root makes in a user's folder, groups, strangers, files in place."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from users import ALICE, BOB, EVE, WORKERS, need_users, run_as

LARGE = b"".join(b"%d\n" % number for number in range(20_000))
"""More than travels with a submission."""


@pytest.fixture
def state_dir(runtime_dir: Path) -> Iterator[Path]:
    """A state folder that belongs to Alice; its daemon is gone afterwards."""
    need_users()
    runtime_dir.chmod(0o755)
    folder = runtime_dir / "s"
    folder.mkdir(mode=0o700)
    os.chown(folder, ALICE, ALICE)
    yield folder
    run_as(0, folder, "stop", "--drain", "0")


def ok(uid: int, state_dir: Path, *words: str, stdin: bytes = b"", **environ: str) -> str:
    """What a command line says that must end well."""
    done = run_as(uid, state_dir, *words, stdin=stdin, **environ)
    assert done.returncode == 0, (uid, words, done.stderr)
    return done.stdout.decode().strip()


def refused(uid: int, state_dir: Path, *words: str, status: int = 7, stdin: bytes = b"", **environ: str) -> str:
    """What a command line says on stderr that must end with this status."""
    done = run_as(uid, state_dir, *words, stdin=stdin, **environ)
    assert done.returncode == status, (uid, words, done)
    return done.stderr.decode()


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in folder.rglob("*")}


def attempts(state_dir: Path) -> list[object]:
    """All that was ever counted against a chunk."""
    events = json.loads(ok(0, state_dir, "history", "list", "--json"))["events"]
    return [event for event in events if event["event"] != "completed"]


def counts(state_dir: Path, submission: str) -> dict[str, object]:
    shown: dict[str, object] = json.loads(ok(0, state_dir, "show", submission, "--json"))
    return shown


def test_run_of_root_in_a_users_folder_leaves_nothing_of_roots(state_dir: Path, runtime_dir: Path) -> None:
    (runtime_dir / "in").write_bytes(LARGE)
    done = run_as(0, state_dir, "run", str(runtime_dir / "in"), "--", "cat")
    assert (done.returncode, done.stdout) == (0, LARGE)
    assert owners(state_dir) == {ALICE}
    ok(ALICE, state_dir, "start")
    ok(ALICE, state_dir, "stop")


@pytest.mark.parametrize(("producer", "consumer"), [(0, ALICE), (ALICE, 0)], ids=["root produces", "root consumes"])
def test_root_and_owner_read_what_the_other_one_wrote(
    state_dir: Path, runtime_dir: Path, producer: int, consumer: int
) -> None:
    ok(ALICE, state_dir, "start")
    submission = ok(producer, state_dir, "submit", "-", "--bytes", "64K", stdin=LARGE)
    ok(consumer, state_dir, "consume", "--until-empty", "--", "cat")
    assert ok(producer, state_dir, "results", submission) == LARGE.decode().strip()
    assert owners(state_dir) == {ALICE}
    ok(producer, state_dir, "rm", submission)
    ok(ALICE, state_dir, "stop")
    ok(ALICE, state_dir, "start")
    assert [path for path in (state_dir / "content").iterdir() if path.is_dir()] == []


def test_group_of_the_socket_submits_consumes_and_reads(state_dir: Path) -> None:
    os.chown(state_dir, ALICE, WORKERS)
    ok(ALICE, state_dir, "start")
    before = ok(ALICE, state_dir, "submit", "-", stdin=LARGE)
    ok(ALICE, state_dir, "restart", "--socket-mode", "0660")
    submission = ok(BOB, state_dir, "submit", "-", "--bytes", "64K", stdin=LARGE)
    assert "the queue" in ok(BOB, state_dir, "doctor")
    assert "and the group" in ok(0, state_dir, "doctor")
    ok(ALICE, state_dir, "consume", "--submission", submission, "--until-empty", "--", "cat")
    assert ok(BOB, state_dir, "results", submission) == LARGE.decode().strip()
    ok(BOB, state_dir, "consume", "--submission", before, "--until-empty", "--", "cat")
    assert ok(ALICE, state_dir, "results", before) == LARGE.decode().strip()
    ok(ALICE, state_dir, "rm", before, submission)
    ok(ALICE, state_dir, "restart", "--socket-mode", "0600")
    assert [path for path in (state_dir / "content").iterdir() if path.is_dir()] == []
    assert "may not be used by this user" in refused(BOB, state_dir, "list")


def test_stranger_is_told_owner_and_mode(state_dir: Path) -> None:
    os.chown(state_dir, ALICE, WORKERS)
    ok(ALICE, state_dir, "start", "--socket-mode", "0660")
    assert f"{state_dir} belongs to uid {ALICE} and has mode 0710" in refused(EVE, state_dir, "list")


def test_consumer_that_may_not_read_content_stops_and_nothing_is_counted(state_dir: Path) -> None:
    """Its user reaches the socket, but not the store."""
    state_dir.chmod(0o711)
    ok(ALICE, state_dir, "start", "--socket-mode", "0666")
    (state_dir / "content").chmod(0o700)
    submission = ok(ALICE, state_dir, "submit", "-", "--bytes", "64K", stdin=LARGE)
    said = refused(BOB, state_dir, "consume", "--until-empty", "--", "cat")
    assert f"may not be read by uid {BOB}" in said
    assert "opsq-security(7)" in said
    assert f"may not be read by uid {BOB}" in refused(BOB, state_dir, "submit", "-", stdin=LARGE)
    assert attempts(state_dir) == []
    ok(ALICE, state_dir, "consume", "--until-empty", "--", "cat")
    assert ok(ALICE, state_dir, "results", submission) == LARGE.decode().strip()


THREADS = """
import opsq
with opsq.connect() as q, q.consumer("OldestFirst") as consumer:
    consumer.run_each_chunk(lambda chunk: chunk.data, until_empty=True)
"""
LOOP = """
import asyncio, opsq
async def work(chunk):
    return await chunk.data()
async def main():
    async with opsq.connect_async() as q, q.consumer("OldestFirst") as consumer:
        await consumer.run_each_chunk(work, until_empty=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("code", ["", THREADS, LOOP], ids=["program", "threads", "loop"])
def test_consumer_that_may_not_write_results_stops_and_nothing_is_counted(state_dir: Path, code: str) -> None:
    """Its user may read everything in the store."""
    state_dir.chmod(0o711)
    ok(ALICE, state_dir, "start", "--socket-mode", "0666")
    submission = ok(ALICE, state_dir, "submit", "-", "--bytes", "64K", stdin=LARGE)
    for path in (state_dir / "content", *(state_dir / "content").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    words = [] if code else ["consume", "--until-empty", "--", "cat"]
    done = run_as(BOB, state_dir, *words, code=code)
    assert done.returncode == (1 if code else 7)
    assert f"may not be written by uid {BOB}" in done.stderr.decode()
    assert attempts(state_dir) == []
    ok(ALICE, state_dir, "consume", "--until-empty", "--", "cat")
    assert counts(state_dir, submission)["state"] == "completed"


def test_content_that_vanishes_with_its_store_is_counted_against_no_chunk(state_dir: Path) -> None:
    ok(ALICE, state_dir, "start")
    submission = ok(ALICE, state_dir, "submit", "-", "--bytes", "64K", stdin=LARGE)
    content = state_dir / "content"
    content.rename(state_dir / "unmounted")
    content.mkdir()
    assert "is not accessible from here" in refused(0, state_dir, "consume", "--until-empty", "--", "cat", status=4)
    assert attempts(state_dir) == []
    content.rmdir()
    (state_dir / "unmounted").rename(content)
    ok(ALICE, state_dir, "consume", "--until-empty", "--", "cat")
    assert counts(state_dir, submission)["state"] == "completed"


# --- files in place ---------------------------------------------------------------------------------------


Address = tuple[Path, dict[str, str], dict[str, str]]


@pytest.fixture
def address(runtime_dir: Path) -> Iterator[Address]:
    """A daemon of root's that Alice may use over TCP: its folder, root's variables and hers."""
    need_users()
    runtime_dir.chmod(0o755)
    state_dir, store = runtime_dir / "r", runtime_dir / "store"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    roots = {"OPSQ_STORE": str(store)}
    (runtime_dir / "client").write_text("only-for-clients-0123456789abcdef\n")
    (runtime_dir / "client").chmod(0o600)
    ok(0, state_dir, "start", "--listen", where, "--client-token-file", str(runtime_dir / "client"), **roots)
    store.chmod(0o755)
    (store / "store-id").chmod(0o644)
    yield state_dir, roots, {"OPSQ_ADDRESS": where, "OPSQ_TOKEN": "only-for-clients-0123456789abcdef"}
    run_as(0, state_dir, "stop", "--drain", "0")


IN_PLACE = """
import os, sys
from opsq.client.core.address import find_daemon
from opsq.client.sync.connection import Connection
from opsq.content.manifest import Content, Part, encode
from opsq.wire.messages import NewSubmission, Submit, Submitted

path, size, mtime, inode = sys.argv[1], *map(int, sys.argv[2:])
address, token = find_daemon(None)
part = Part(os.fsencode(path), size, 0, (size, mtime, inode))
with Connection.open(address, token=token) as daemon:
    content = encode(Content("0" * 32, 1, size, [part], 1))
    submit = Submit(daemon.next_id(), [NewSubmission(os.urandom(16), 1, content)])
    print(daemon.call(submit, Submitted).created[0].submission_id)
"""
"""Submits a file in place that its user need not be able to read: what `stat` says of it is enough."""


def submit_in_place(uid: int, path: Path, state_dir: Path, environ: dict[str, str]) -> str:
    found = path.stat()
    numbers = map(str, (found.st_size, found.st_mtime_ns, found.st_ino))
    done = run_as(uid, state_dir, str(path), *numbers, code=IN_PLACE, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


@pytest.fixture
def secret(runtime_dir: Path) -> Path:
    """A file that only root can read."""
    (runtime_dir / "shadow").write_bytes(b"root:secret\n")
    (runtime_dir / "shadow").chmod(0o600)
    return runtime_dir / "shadow"


def test_secret_that_a_client_names_is_not_read_by_a_consumer_of_root(address: Address, secret: Path) -> None:
    state_dir, roots, hers = address
    submission = submit_in_place(ALICE, secret, state_dir, hers)
    for words in ("consume -- cat", f"read {submission}/0", "consume -- cat {in}", "consume --each -- echo {}"):
        done = run_as(0, state_dir, *words.split(), **roots)
        assert (done.returncode, done.stdout) == (7, b""), (words, done)
        assert "in_place_roots" in done.stderr.decode()
    assert attempts(state_dir) == []
    assert counts(state_dir, submission)["state"] == "open"


def test_file_below_a_root_of_the_consumer_is_read_and_no_link_leads_out_of_it(
    address: Address, secret: Path, runtime_dir: Path
) -> None:
    state_dir, roots, hers = address
    shared = runtime_dir / "shared"
    shared.mkdir()
    (shared / "in").write_bytes(LARGE)
    (shared / "link").symlink_to(secret)
    allowed = roots | {"OPSQ_IN_PLACE_ROOTS": f"/nowhere:{shared}"}
    submission = submit_in_place(ALICE, shared / "in", state_dir, hers)
    ok(0, state_dir, "consume", "--until-empty", "--", "cat", **allowed)
    assert ok(0, state_dir, "results", submission, **roots) == LARGE.decode().strip()
    submit_in_place(ALICE, shared / "link", state_dir, hers)
    told = refused(0, state_dir, "consume", "--until-empty", "--", "cat", **allowed)
    assert f"it is not below /nowhere, {shared}" in told
    assert attempts(state_dir) == []


def test_secret_that_the_user_of_a_daemon_names_is_not_read_by_root(state_dir: Path, secret: Path) -> None:
    """The daemon of another user could say that root has submitted it."""
    ok(ALICE, state_dir, "start")
    submission = submit_in_place(ALICE, secret, state_dir, {})
    assert "in_place_roots" in refused(0, state_dir, "consume", "--until-empty", "--", "cat")
    assert counts(state_dir, submission)["state"] == "open"


def test_own_file_in_place_needs_no_root(state_dir: Path, runtime_dir: Path) -> None:
    ok(ALICE, state_dir, "start")
    (runtime_dir / "in").write_bytes(LARGE)
    submission = ok(ALICE, state_dir, "submit", "--in-place", str(runtime_dir / "in"))
    ok(ALICE, state_dir, "consume", "--until-empty", "--", "cat")
    assert ok(ALICE, state_dir, "results", submission) == LARGE.decode().strip()


def test_home_that_may_not_be_entered_has_no_settings(state_dir: Path, runtime_dir: Path) -> None:
    home = runtime_dir / "home"
    (home / ".config" / "opsq").mkdir(parents=True)
    (home / ".config" / "opsq" / "opsq.toml").write_text("nonsense")
    home.chmod(0o700)
    ok(ALICE, state_dir, "start", HOME=str(home))
    ok(ALICE, state_dir, "doctor", HOME=str(home))
