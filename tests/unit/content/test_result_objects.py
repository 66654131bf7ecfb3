"""Large results: one object per consumer, joined in order into any kind of output, whole files or none."""

import errno
import io
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.content import result_objects
from opsq.content.local_store import LocalStore
from opsq.content.object_store import CloudStore
from opsq.content.result_joiner import join_results
from opsq.content.result_objects import ResultWriter
from opsq.errors import ContentMissing, StorageFull, StoreNotVisible, UsageError

FOLDER = "00112233445566778899aabbccddeeff"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "content")


def joined(results: list, store: LocalStore) -> bytes:
    out = io.BytesIO()
    assert join_results(results, store, FOLDER, out) == len(out.getvalue())
    return out.getvalue()


def test_all_results_of_a_consumer_are_in_one_file(store: LocalStore) -> None:
    writer = ResultWriter(store, FOLDER, "host/1:../x")
    stored = []
    for number in range(500):
        stored.append(writer.append(b"%d\n" % number * 2000))
        if number % 50 == 49:
            writer.sync()
    (name,) = os.listdir(store.path(f"{FOLDER}/results"))
    assert name.startswith("host_1_.._x-")
    assert joined(stored, store) == b"".join(b"%d\n" % number * 2000 for number in range(500))


def test_two_consumers_of_one_name_do_not_mix(store: LocalStore) -> None:
    writers = [ResultWriter(store, FOLDER, "same") for _ in range(2)]
    stored = [writer.append(b"%d" % number) for number, writer in enumerate(writers)]
    for writer in writers:
        writer.sync()
    assert joined(stored, store) == b"01"


def test_no_descriptor_is_held_between_sync_and_append(store: LocalStore) -> None:
    """A consumer may work for a hundred thousand submissions at once."""
    before = len(os.listdir("/dev/fd"))
    writers = [ResultWriter(store, f"{number:032x}", "consumer", is_durable=False) for number in range(20)]
    for writer in writers:
        writer.append(b"x" * 5000)
        writer.sync()
    assert len(os.listdir("/dev/fd")) == before


def test_a_file_is_appended_whole(store: LocalStore, tmp_path: Path) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    text = os.urandom(3 << 20)
    for content in (text, b""):
        (tmp_path / "result").write_bytes(content)
        with open(tmp_path / "result", "rb") as file:
            stored = writer.append_file(file.fileno())
        writer.sync()
        assert joined([stored], store) == content


def test_nothing_comes_between_the_pieces_of_a_file(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads append to the same object."""
    monkeypatch.setattr(result_objects, "_READ_BYTES", 1)
    writer = ResultWriter(store, FOLDER, "consumer")
    append, are_held = writer.append, []

    def note(piece: bytes) -> result_objects.Stored:
        are_held.append(writer._lock._is_owned())
        return append(piece)

    monkeypatch.setattr(writer, "append", note)
    (tmp_path / "result").write_bytes(b"ab")
    with open(tmp_path / "result", "rb") as file:
        writer.append_file(file.fileno())
    assert are_held == [True, True]


def test_a_full_disk_leaves_earlier_results_and_the_next_one_whole(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    first = writer.append(b"first")
    write = os.write

    def write_half(descriptor: int, content: bytes) -> int:
        if len(content) < 6:
            raise OSError(28, "No space left on device")
        return write(descriptor, content[:6])

    with monkeypatch.context() as patch:
        patch.setattr("opsq.content.file_io.os.write", write_half)
        with pytest.raises(StorageFull, match="bytes free"):
            writer.append(b"halfhalf")
    third = writer.append(b"third")
    writer.sync()
    assert joined([third, first], store) == b"thirdfirst"


def test_a_closed_writer_leaves_nothing_that_was_not_synced(store: LocalStore) -> None:
    before = len(os.listdir("/dev/fd"))
    writer = ResultWriter(store, FOLDER, "consumer")
    writer.append(b"never synced")
    writer.close()
    assert (len(os.listdir("/dev/fd")), list(store.objects(f"{FOLDER}/results"))) == (before, [])
    first = writer.append(b"first")
    writer.sync()
    writer.append(b"never synced")
    writer.close()
    second = writer.append(b"second")
    writer.sync()
    assert len(os.listdir("/dev/fd")) == before
    assert joined([first, second], store) == b"firstsecond"


def test_results_of_a_removed_submission_are_told_to_be_gone(store: LocalStore) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    stored = writer.append(b"first")
    writer.sync()
    store.delete_folder(FOLDER)
    with pytest.raises(ContentMissing, match="is gone"):
        writer.append(b"second")
    with pytest.raises(ContentMissing, match="is gone"):
        joined([stored], store)


def test_a_result_object_that_was_cut_short_is_told(store: LocalStore, tmp_path: Path) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    stored = writer.append(b"x" * 10_000)
    writer.sync()
    os.truncate(store.path(f"{FOLDER}/{stored.object}"), 100)
    with pytest.raises(ContentMissing, match="ends after 100 bytes"):
        joined([stored], store)
    with open(tmp_path / "out", "wb") as out, pytest.raises(ContentMissing, match="ends after 100 bytes"):
        join_results([stored], store, FOLDER, out)


def test_a_result_cannot_name_a_file_outside_the_store(store: LocalStore) -> None:
    for name in ("../../secret", "/etc/passwd", "results/../../x", ""):
        with pytest.raises(UsageError, match="is not a valid object name"):
            joined([(name, 0, 1)], store)


class Outputs:
    """The kinds of output that a shell can give us; each takes what is written to it and tells what arrived."""

    @staticmethod
    def file(tmp_path: Path, write: object) -> bytes:
        with open(tmp_path / "out", "wb") as out:
            write(out)
        return (tmp_path / "out").read_bytes()

    @staticmethod
    def unbuffered(tmp_path: Path, write: object) -> bytes:
        with open(tmp_path / "out", "wb", buffering=0) as out:
            write(out)
        return (tmp_path / "out").read_bytes()

    @staticmethod
    def appended(tmp_path: Path, write: object) -> bytes:
        (tmp_path / "out").write_bytes(b"before")
        with open(tmp_path / "out", "ab") as out:
            write(out)
        found = (tmp_path / "out").read_bytes()
        assert found.startswith(b"before")
        return found[6:]

    @staticmethod
    def pipe(tmp_path: Path, write: object) -> bytes:
        reader, writer = os.pipe()
        found = bytearray()

        def drain() -> None:
            while piece := os.read(reader, 1 << 16):
                found.extend(piece)
            os.close(reader)

        thread = threading.Thread(target=drain)
        thread.start()
        with open(writer, "wb") as out:
            write(out)
        thread.join()
        return bytes(found)

    @staticmethod
    def memory(tmp_path: Path, write: object) -> bytes:
        out = io.BytesIO()
        write(out)
        return out.getvalue()


@pytest.mark.parametrize("kind", ["file", "unbuffered", "appended", "pipe", "memory"])
def test_results_are_joined_in_order_into_every_kind_of_output(store: LocalStore, tmp_path: Path, kind: str) -> None:
    writers = [ResultWriter(store, FOLDER, str(number)) for number in range(2)]
    results, expected = [], bytearray()
    for number in range(400):
        content = os.urandom(number * 37 % 9000 if number % 5 else number * 500)
        expected += content
        results.append(writers[number // 7 % 2].append(content) if len(content) > 4096 else content)
    for writer in writers:
        writer.sync()

    def write(out: io.BufferedIOBase) -> None:
        out.write(b"head")
        assert join_results(iter(results), store, FOLDER, out) == len(expected)
        out.write(b"tail")

    assert getattr(Outputs, kind)(tmp_path, write) == b"head" + expected + b"tail"


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=20))))
@settings(max_examples=60, deadline=None)
def test_joined_results_are_the_results(
    tmp_path_factory: pytest.TempPathFactory, results: list[tuple[bool, bytes]]
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("results"))
    writer = ResultWriter(store, FOLDER, "consumer", is_durable=False)
    rows = [writer.append(content) if is_large else content for is_large, content in results]
    writer.sync()
    assert joined(rows, store) == b"".join(content for _, content in results)


def test_neighbouring_ranges_are_copied_as_one(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    stored = [writer.append(b"x" * 5000) for _ in range(100)]
    writer.sync()
    opened = []
    open_file = store.files.open
    monkeypatch.setattr(store.files, "open", lambda path, **how: opened.append(path) or open_file(path, **how))
    with open(tmp_path / "out", "wb") as out:
        join_results(stored, store, FOLDER, out)
    assert len(opened) == 1


def test_ranges_with_a_gap_or_in_another_order_are_not_copied_as_one(store: LocalStore) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    stored = [writer.append(bytes([number]) * 100_000) for number in range(5)]
    writer.sync()
    assert joined([stored[0], stored[2], stored[1], stored[4], stored[4]], store) == b"".join(
        bytes([number]) * 100_000 for number in (0, 2, 1, 4, 4)
    )


def test_results_that_could_not_be_synced_are_lost_and_the_next_go_elsewhere(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync would succeed, although the system has dropped what it could not write."""
    writer = ResultWriter(store, FOLDER, "consumer")
    kept = writer.append(b"kept")
    writer.sync()
    lost = writer.append(b"lost")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(result_objects, "sync_descriptor", fail)
        with pytest.raises(StoreNotVisible):
            writer.sync()
    assert writer.lost == {lost.object}
    later = writer.append(b"later")
    writer.sync()
    assert later.object not in writer.lost
    assert joined([kept, later], store) == b"keptlater"


def test_interrupted_sync_is_done_by_the_next_call(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    stored = writer.append(b"result")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(result_objects, "sync_descriptor", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.sync()
    synced: list[int] = []
    monkeypatch.setattr(result_objects, "sync_descriptor", synced.append)
    writer.sync()
    assert len(synced) == 1
    assert joined([stored], store) == b"result"


def test_results_after_an_interrupted_append_are_stored_where_their_locations_say(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may catch the interrupt and go on with the same consumer."""
    writer = ResultWriter(store, FOLDER, "consumer")
    first = writer.append(b"first")
    write_all = result_objects.write_all

    def write_and_be_interrupted(descriptor: int, content: bytes) -> None:
        write_all(descriptor, content)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(result_objects, "write_all", write_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append(b"interrupted")
    last = [writer.append(b"2nd"), writer.append(b"third")]
    writer.sync()
    assert joined([first, *last], store) == b"first2ndthird"


def test_results_after_a_failed_write_that_could_not_be_undone_are_stored_where_their_locations_say(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ResultWriter(store, FOLDER, "consumer")
    first = writer.append(b"first")

    def write_half(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(result_objects, "write_all", write_half)
        patch.setattr(result_objects.os, "ftruncate", fail)
        with pytest.raises(StorageFull):
            writer.append(b"halfhalf")
    last = writer.append(b"2nd")
    writer.sync()
    assert joined([first, last], store) == b"first2nd"


class _Interrupting(bytearray):
    """Takes what is added, and is interrupted then."""

    def __iadd__(self, content: bytes) -> bytearray:  # type: ignore[override]
        self.extend(content)
        raise KeyboardInterrupt


def test_results_after_an_interrupted_append_are_in_the_object_where_their_locations_say() -> None:
    store = CloudStore("memory:///", {})
    writer = ResultWriter(store, FOLDER, "consumer")
    first = writer.append(b"first")
    writer._batch = _Interrupting(writer._batch)
    with pytest.raises(KeyboardInterrupt):
        writer.append(b"interrupted")
    writer._batch = bytearray(writer._batch)
    last = writer.append(b"last")
    writer.sync()
    assert joined([first, last], store) == b"firstlast"


def test_upload_that_is_interrupted_at_its_end_keeps_what_it_has_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CloudStore("memory:///", {})
    writer = ResultWriter(store, FOLDER, "consumer")
    first = writer.append(b"first")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_begin_next", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.sync()
    last = writer.append(b"last")
    writer.sync()
    assert joined([first, last], store) == b"firstlast"
