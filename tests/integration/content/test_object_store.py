"""The same requirements for both kinds of store: files, and an object service (moto's S3 on loopback)."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from contents import in_place
from opsq.content.chunk_reader import ChunkReader
from opsq.content.content_store import Store
from opsq.content.content_writer import ContentWriter
from opsq.content.manifest import decode, encode
from opsq.content.multipart import PartWriter, compose
from opsq.content.object_store import CloudStore
from opsq.content.result_joiner import join_results
from opsq.content.result_objects import ResultWriter
from opsq.content.splitter import Splitting
from opsq.content.store_kinds import open_store
from opsq.errors import Conflict, ContentMissing, NotPermitted, OpsqError, StoreNotVisible, UsageError
from opsq.ids import FULL

FOLDER = "00112233445566778899aabbccddeeff"
OTHER = FOLDER[::-1]


@pytest.fixture
def url(bucket: str) -> str:
    return f"s3://{bucket}/some/prefix"


@pytest.fixture
def options(object_service: str) -> dict[str, str]:
    return {"endpoint": object_service, "region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}


@pytest.fixture(params=["files", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "files":
        return open_store(tmp_path / "content")
    return open_store(request.getfixturevalue("url"), options=request.getfixturevalue("options"))


def test_chunks_come_back_as_they_were(store: Store) -> None:
    text = (
        b"".join(b"%d\r\n\xff\0" % number for number in range(400_000)) + b"no line end"
    )  # longer than the buffers on its way
    with ContentWriter(store, FOLDER) as writer:
        writer.write_stream(io.BytesIO(text), Splitting(count=3000), "input")
        content = writer.finish()
    content = decode(encode(content))
    assert content.manifest is not None
    reader = ChunkReader(store, content)
    blocks = range(-(-content.chunks_count // 64))
    masks = [FULL if block < blocks[-1] else (1 << content.chunks_count % 64) - 1 for block in blocks]
    assert b"".join(chunk for block in blocks for chunk in reader.read_block(block, masks[block])) == text
    assert reader.read(65) == text[sum(map(reader.size, range(65))) :][: reader.size(65)]


def test_a_large_part_is_uploaded_in_pieces(store: Store) -> None:
    piece = bytes(range(256)) * (1 << 14)
    with ContentWriter(store, FOLDER) as writer:
        for _ in range(6):
            writer.add_chunk(piece)
        reader = ChunkReader(store, writer.finish())
    assert list(reader.read_block(0, 0b100001)) == [piece, piece]
    assert store.size_bytes(f"{FOLDER}/part-0") == 6 * len(piece)


def test_what_is_aborted_leaves_nothing(store: Store) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * (17 << 20))
        writer.add_chunk(b"x" * 100_000)
    assert list(store.folders()) == []


def test_content_under_the_same_key_is_not_overwritten(store: Store) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * 100_000)
        writer.finish()
    with ContentWriter(store, FOLDER) as writer, pytest.raises(Conflict, match="written before"):
        writer.add_chunk(b"y" * 100_000)
    assert store.read_range(f"{FOLDER}/part-0", 0, 1) == b"x"


def test_results_are_joined_in_order(store: Store, tmp_path: Path) -> None:
    writers = [ResultWriter(store, FOLDER, "consumer") for _ in range(2)]
    results, expected = [], b""
    for number in range(90):
        content = b"%d." % number * 3000
        expected += content
        results.append(writers[number % 7 // 4].append(content))
        if number % 20 == 19:
            for writer in writers:
                writer.sync()
    (tmp_path / "result").write_bytes(b"from a file")
    with open(tmp_path / "result", "rb") as file:
        results.append(writers[0].append_file(file.fileno()))
    for writer in writers:
        writer.sync()
    with open(tmp_path / "out", "wb") as out:
        join_results([*results, b"tail"], store, FOLDER, out)
    assert (tmp_path / "out").read_bytes() == expected + b"from a file" + b"tail"


def test_the_marker_is_made_once(store: Store) -> None:
    with pytest.raises(StoreNotVisible, match="is not accessible from here"):
        store.check_marker("0" * 32)
    marker = store.mark()
    assert store.mark() == marker
    store.check_marker(marker)


def test_folders_are_listed_with_their_age_and_deleted(store: Store) -> None:
    assert list(store.folders()) == []
    store.mark()
    for folder in (FOLDER, OTHER):
        with ContentWriter(store, folder) as writer:
            writer.add_chunk(b"x" * 100_000)
            writer.finish()
    assert sorted(store.folders()) == sorted([FOLDER, OTHER])
    assert (store.modified_at(FOLDER) or 0) > 1_700_000_000
    store.delete_folder(FOLDER)
    store.delete_folder(FOLDER)
    assert list(store.folders()) == [OTHER]
    assert store.modified_at(FOLDER) is None


def test_what_is_not_there_is_missing(store: Store) -> None:
    store.mark()
    with pytest.raises(ContentMissing, match=f"{FOLDER}/part-0"):
        store.read_range(f"{FOLDER}/part-0", 0, 1)
    with pytest.raises(ContentMissing, match=f"{FOLDER}/part-0"):
        store.size_bytes(f"{FOLDER}/part-0")
    store.write_object(f"{FOLDER}/part-0", b"short", is_durable=True)
    with pytest.raises(ContentMissing, match="ends after 5 bytes"):
        store.read_range(f"{FOLDER}/part-0", 3, 10)
    with pytest.raises(ContentMissing):
        store.read_range(f"{FOLDER}/part-0", 100, 10)
    assert store.read_range(f"{FOLDER}/part-0", 5, 0) == b""


def test_a_name_outside_the_store_is_refused(store: Store) -> None:
    for name in ("../x", "/x", "a/./b", ""):
        with pytest.raises(UsageError):
            store.read_range(name, 0, 1)
        with pytest.raises(UsageError):
            store.delete_folder(name)


def test_files_in_place_are_read_beside_an_object_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"a\n" * 1000)
    reader = ChunkReader(store, in_place(store, FOLDER, [tmp_path / "input"], Splitting(by="records", count=2)))
    assert list(reader.read_block(7, 0b11)) == [b"a\na\n", b"a\na\n"]


def test_the_environment_says_how_to_reach_the_service(
    service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(service_environment["OPSQ_STORE"])
    assert store.mark() == store.marker()


def test_a_bucket_that_is_not_there_is_named(bucket: str, options: dict[str, str]) -> None:
    store = open_store("s3://absent/prefix", options=options)
    with pytest.raises(OpsqError, match="s3://absent/prefix"):
        store.write_object("a/b", b"x", is_durable=True)


def test_a_service_that_does_not_answer_is_named(
    url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.content.object_store._RETRIES_LIMIT", 0)
    store = open_store(url, options={**options, "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(StoreNotVisible, match=r"does not serve s3://bucket/some/prefix/store-id.*Check its endpoint"):
        store.mark()


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.write_object("a/b", b"x", is_durable=True),
        lambda store: store.read_range("a/b", 0, 1),
        lambda store: store.size_bytes("a/b"),
        lambda store: store.create_folder("a"),
        lambda store: store.delete_folder("a"),
        lambda store: store.delete_object("a/b"),
        lambda store: list(store.objects("a")),
        lambda store: list(store.folders()),
    ],
)
def test_each_question_to_a_service_that_does_not_answer_says_so(
    ask: Callable[[Store], object], url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsq.content.object_store._RETRIES_LIMIT", 0)
    store = open_store(url, options={**options, "endpoint": "http://127.0.0.1:1"})
    with pytest.raises(StoreNotVisible, match=r"does not serve s3://bucket/some/prefix"):
        ask(store)


def test_refused_credentials_are_told() -> None:
    store = open_store("s3://bucket", options={"region": "us-east-1", "skip_signature": "true"})
    assert isinstance(store, CloudStore)
    from obstore.exceptions import PermissionDeniedError

    assert isinstance(store.failure("a", PermissionDeniedError("no\nDebug source")), NotPermitted)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/prefix", {"skip_signature": "true"}),
        ("az://container/prefix", {"account_name": "account", "skip_signature": "true"}),
    ],
)
def test_the_other_services_are_opened_without_a_request(url: str, options: dict[str, str]) -> None:
    store = open_store(url, options=options)
    assert isinstance(store, CloudStore)
    assert store.url == url
    assert store.path("a/b") is None


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="colour"):
        open_store("s3://bucket", options={"colour": "red"})


def test_parts_of_several_writers_make_one_content(store: Store) -> None:
    parts = []
    for number in range(3):
        with PartWriter(store, FOLDER, f"part-{number}") as writer:
            writer.add_chunk(b"%d" % number)
            writer.add_chunk(b"x" * (2 << 20))
            parts.append(writer.finish())
    content = compose(store, FOLDER, [part for part in parts if part is not None], about=b"schema")
    reader = ChunkReader(store, content)
    assert [reader.read(index)[:1] for index in range(6)] == [b"0", b"x", b"1", b"x", b"2", b"x"]


def test_an_object_is_deleted_alone(store: Store) -> None:
    store.ensure_folder(FOLDER)
    for name in ("one", "two", "deeper/three"):
        store.write_object(f"{FOLDER}/{name}", b"x", is_durable=True)
    store.delete_object(f"{FOLDER}/one")
    store.delete_object(f"{FOLDER}/never")
    assert list(store.objects(FOLDER)) == ["two"]
    assert list(store.objects(OTHER)) == []


def test_object_is_swapped_for_the_version_that_was_read_only(store: Store) -> None:
    assert store.read_version("owner") is None
    first = store.swap_object("owner", b"1", None)
    with pytest.raises(Conflict):
        store.swap_object("owner", b"other", None)
    assert store.read_version("owner") == (b"1", first)
    second = store.swap_object("owner", b"2", first)
    with pytest.raises(Conflict):
        store.swap_object("owner", b"other", first)
    assert store.read_version("owner") == (b"2", second)
    store.delete_object("owner")
    with pytest.raises(Conflict):
        store.swap_object("owner", b"3", second)
