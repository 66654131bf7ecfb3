"""A store of files: names stay inside, markers tell stores apart, descriptors are bounded; and what importing costs."""

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from opsq.content import local_store
from opsq.content.file_io import DESCRIPTORS_LIMIT
from opsq.content.local_store import LocalStore
from opsq.content.result_objects import ResultWriter
from opsq.content.store_kinds import open_store
from opsq.errors import ContentMissing, ContentNotPermitted, OpsqError, StoreNotVisible, UsageError


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "content")


@pytest.mark.parametrize("name", [b"plain-1_2.x", b"with space", b"100%", b"\xc3\xa9", b"\xff"])
def test_a_path_and_its_url_are_the_same_store(tmp_path: Path, name: bytes) -> None:
    store = open_store(os.path.join(tmp_path, os.fsdecode(name)))
    assert store.url.isascii()
    assert store.mark() == open_store(store.url).marker()


@pytest.mark.parametrize("location", ["http://host/x", "file://host/path", "s3", "s4://bucket"])
def test_a_location_of_no_known_kind_is_refused(location: str) -> None:
    if "://" in location:
        with pytest.raises(UsageError, match=location):
            open_store(location)
    else:
        assert isinstance(open_store(location), LocalStore)


def test_another_store_in_the_place_of_ours_is_noticed(tmp_path: Path) -> None:
    store, other = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "two")
    marker = store.mark()
    store.check_marker(marker)
    with pytest.raises(StoreNotVisible, match=r"two, is not accessible from here\. "):
        other.check_marker(marker)
    other.mark()
    with pytest.raises(StoreNotVisible, match="there is a different store in its place"):
        other.check_marker(marker)


def test_store_is_shared_once_a_second_queue_has_claimed_it(store: LocalStore) -> None:
    store.mark()
    for owner in ("", "first", "first"):  # a file that could not be written yet has no identity
        store.claim(owner)
        assert not store.is_shared()
    store.claim("second")
    store.claim("first")
    assert store.is_shared()


def test_names_that_lead_out_of_the_store_are_refused(store: LocalStore) -> None:
    for name in ("../x", "a/../x", "/etc/passwd", "", ".", "a//b", "a\0"):
        for call in (store.path, store.size_bytes, store.delete_folder, store.create_folder):
            with pytest.raises(UsageError):
                call(name)


def test_only_a_file_that_is_there_and_that_no_other_user_writes_is_our_own(store: LocalStore) -> None:
    store.mark()
    file = Path(store.root, "parts")
    assert not store.is_own("parts")
    file.write_bytes(b"")
    file.chmod(0o644)
    assert store.is_own("parts")
    file.chmod(0o664)
    assert not store.is_own("parts")


def test_a_folder_that_is_written_to_while_it_is_deleted_goes_with_what_was_written(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_object("a/x", b"x", is_durable=False)
    remove = os.rmdir

    def late(path: str) -> None:
        monkeypatch.setattr(os, "rmdir", remove)
        Path(path, "late").touch()
        remove(path)

    monkeypatch.setattr(os, "rmdir", late)
    store.delete_folder("a")
    assert list(store.folders()) == []


def test_no_file_of_a_deleted_folder_is_kept_open(store: LocalStore) -> None:
    """Its disk space would not be free."""
    store.create_folder("a")
    store.write_object("a/b", b"x", is_durable=False)
    before = len(os.listdir("/dev/fd"))
    assert store.read_range("a/b", 0, 1) == b"x"
    assert len(os.listdir("/dev/fd")) > before
    store.delete_folder("a")
    assert len(os.listdir("/dev/fd")) == before


def test_a_writer_whose_folder_was_deleted_can_be_aborted(store: LocalStore) -> None:
    store.create_folder("a")
    writer = store.open_writer("a/x", is_durable=False)
    store.delete_folder("a")
    writer.abort()
    assert list(store.folders()) == []


def test_a_deleted_folder_takes_its_contents_but_follows_no_link(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    store.write_object("a/results/x", b"x", is_durable=False)
    os.symlink(tmp_path / "precious", store.path("a/link"))
    store.write_object("b/x", b"x", is_durable=False)
    store.delete_folder("a")
    store.delete_folder("a")
    assert list(store.folders()) == ["b"]
    assert (tmp_path / "precious" / "file").exists()


@pytest.fixture
def shared(store: LocalStore) -> LocalStore:
    """A store to which a group may write."""
    store.mark()
    store.set_group(os.getgid())
    return store


def plant_symlink(path: Path, target: Path) -> None:
    path.symlink_to(target)


def plant_hard_link(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def plant_fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("plant", [plant_symlink, plant_hard_link, plant_fifo])
def test_result_file_that_another_has_replaced_is_not_written_to(
    shared: LocalStore, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    writer = ResultWriter(shared, "a", "consumer")
    stored = writer.append(b"first")
    writer.sync()
    path = Path(shared.path(f"a/{stored.object}"))
    path.unlink()
    plant(path, precious)
    with pytest.raises(ContentNotPermitted):
        writer.append(b"second")
    assert precious.read_text() == "mine"


def test_nothing_is_made_where_a_folder_was_replaced_by_a_link_out_of_the_store(
    shared: LocalStore, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared.create_folder("a")
    Path(shared.path("a/results")).symlink_to(elsewhere)
    with pytest.raises(ContentNotPermitted):
        ResultWriter(shared, "a", "consumer").append(b"x")
    with pytest.raises(ContentNotPermitted):
        shared.write_object("a/results/x", b"x", is_durable=False)
    assert list(elsewhere.iterdir()) == []


def test_sharing_a_store_leaves_alone_what_has_names_elsewhere(store: LocalStore, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch(0o600)
    store.write_object("a/x", b"x", is_durable=False)
    Path(store.path("a/hard")).hardlink_to(precious)
    Path(store.path("a/soft")).symlink_to(precious)
    os.mkfifo(store.path("a/fifo"))
    store.set_group(os.getgid())
    assert precious.stat().st_mode & 0o777 == 0o600
    assert os.stat(store.path("a/x")).st_mode & 0o777 == 0o640


def test_a_store_that_is_shared_no_more_is_its_owners_alone(store: LocalStore) -> None:
    store.mark()
    store.set_group(os.getgid())
    assert os.stat(store.root).st_mode & 0o070 == 0o070
    store.set_group(None)
    assert os.stat(store.root).st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpsqError, match=f"{tmp_path}/file/content/parts"):
        LocalStore(tmp_path / "file" / "content").create_folder("parts")


def test_a_folder_is_as_young_as_the_last_write_in_it(store: LocalStore) -> None:
    store.write_object("a/results/x", b"x", is_durable=False)
    for path in ("a", "a/results"):
        os.utime(store.path(path), (100, 100))
    os.utime(store.path("a/results/x"), (200, 200))
    assert store.modified_at("a") == 200
    assert store.modified_at("b") is None


def test_an_object_is_replaced_as_a_whole(store: LocalStore) -> None:
    store.write_object("a", b"one", is_durable=True)
    store.write_object("a", b"three", is_durable=True)
    assert store.size_bytes("a") == 5
    assert os.listdir(store.root) == ["a"]


def test_a_read_of_what_is_not_there_says_where(store: LocalStore) -> None:
    with pytest.raises(ContentMissing, match=rf"{store.root}/a/b is gone"):
        store.read_range("a/b", 0, 1)
    with pytest.raises(ContentMissing, match=rf"{store.root}/a/b cannot be read"):
        store.size_bytes("a/b")


def test_many_files_are_read_by_many_threads_with_few_descriptors(store: LocalStore) -> None:
    names = [f"f/{number}" for number in range(3 * DESCRIPTORS_LIMIT)]
    for name in names:
        store.write_object(name, name.encode(), is_durable=False)
    before = len(os.listdir("/dev/fd"))
    wrong = []

    def read(shift: int) -> None:
        wrong.extend(
            name for name in names[shift:] + names[:shift] if store.read_range(name, 0, len(name)) != name.encode()
        )

    threads = [threading.Thread(target=read, args=(20 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(os.listdir("/dev/fd")) <= before + DESCRIPTORS_LIMIT
    store.close()
    assert len(os.listdir("/dev/fd")) == before


def test_reading_local_chunks_loads_nothing_heavy() -> None:
    """The hot verbs import these modules; each of the names below costs more than a verb may."""
    code = (
        "import sys, msgspec; before = set(sys.modules)\n"
        "import opsq.content.local_store, opsq.content.chunk_reader\n"
        "import opsq.content.result_joiner, opsq.content.result_objects\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [name for name in found.stdout.split() if not name.startswith(("opsq", "_"))]
    assert set(names) <= {"array", "bisect", "errno", "fcntl", "msgspec.structs", "threading"}


def test_swap_does_not_wait_for_good_for_a_process_that_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_store, "_LOCK_S", 0.05)
    store = open_store(tmp_path)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StoreNotVisible, match="locked"):
            store.swap_object("one", b"1", None)
    finally:
        os.close(descriptor)
    store.swap_object("one", b"1", None)
