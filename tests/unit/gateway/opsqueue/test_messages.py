"""Opsqueue's protocol: what its client 0.30.3 has sent and was sent, byte for byte."""

import json

import cbor2
import pytest

from opsq.gateway.opsqueue import messages
from opsq.gateway.opsqueue.consumer import strategy_of
from opsq.gateway.opsqueue.messages import BadMessage, ChunkId, CompleteChunk, FailChunk, WantToReserveChunks
from opsq.gateway.opsqueue.submissions import Facts, Format, shown

ID = 7532191570167070720
RESERVE = (
    "a2656e6f6e63650068636f6e74656e7473a17357616e74546f526573657276654368756e6b73a2636d617801687374726174656779"
    "6652616e646f6d"
)
NESTED = (
    "a2656e6f6e63650068636f6e74656e7473a17357616e74546f526573657276654368756e6b73a2636d617802687374726174656779"
    "a16e50726566657244697374696e6374a2686d6574615f6b65796269646a756e6465726c79696e67a16e507265666572446973746963"
    "6e6374"
)
COMPLETE = (
    "a2656e6f6e63650168636f6e74656e7473a16d436f6d706c6574654368756e6ba2626964a26d7375626d697373696f6e5f69641b6887b853"
    "680000006b6368756e6b5f696e646578026e6f75747075745f636f6e74656e74"
)
FAIL = (
    "a2656e6f6e63650168636f6e74656e7473a1694661696c4368756e6ba2626964a26d7375626d697373696f6e5f69641b6887bb9427c00000"
    "6b6368756e6b5f696e64657801676661696c75726567626f6f6d20c3a9"
)
EXPIRED = (
    "a1654173796e63a1774368756e6b5265736572766174696f6e45787069726564a26d7375626d697373696f6e5f69641b6887b85368000000"
    "6b6368756e6b5f696e64657802"
)
NOTHING_WANTED = "a16453796e63a2656e6f6e63650368636f6e74656e7473a16e4368756e6b735265736572766564a16345727280"
EMPTY = "a16453796e63a2656e6f6e63650368636f6e74656e7473a16e4368756e6b735265736572766564a1624f6b80"
RESERVED = (
    "a16453796e63a2656e6f6e63650068636f6e74656e7473a16e4368756e6b735265736572766564a1624f6b8182a46d7375626d69737369"
    "6f6e5f69641b6887b853680000006b6368756e6b5f696e646578026d696e7075745f636f6e74656e74f6677265747269657300a8626964"
    "1b6887b85368000000667072656669786170"
)


def read(text):
    """A frame of a consumer."""
    return messages.read_request(bytes.fromhex(text))


def preferring(*keys):
    """The strategy of a reserve, nested."""
    wanted = "Random"
    for key in reversed(keys):
        wanted = {"PreferDistinct": {"meta_key": key, "underlying": wanted}}
    return wanted


def reserving(strategy):
    """A frame that asks for a chunk."""
    said = {"WantToReserveChunks": {"max": 1, "strategy": strategy}}
    return messages.read_request(cbor2.dumps({"nonce": 4, "contents": said}))[1]


def test_reads_what_consumers_send():
    assert read(RESERVE) == (0, WantToReserveChunks(1, "Random"))
    assert read(COMPLETE + "f6") == (1, CompleteChunk(ChunkId(ID, 2), None))
    assert read(COMPLETE + "8318820203") == (1, CompleteChunk(ChunkId(ID, 2), [0x82, 2, 3]))
    assert read(FAIL) == (1, FailChunk(ChunkId(7532195146796892160, 1), "boom é"))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("Random", "Random"),
        ("Oldest", "OldestFirst"),
        ("Newest", "NewestFirst"),
        (preferring("id", "second_id"), "PreferDistinct(id, 1, PreferDistinct(second_id, 1))"),
        (preferring("no key of ours", "id"), "PreferDistinct(id, 1)"),
        (preferring(*"abcdefgh"), str(strategy_of(reserving(preferring(*"abcdef")).strategy))),
    ],
    ids=str,
)
def test_strategies_of_opsqueue_are_ours(wanted, text):
    assert str(strategy_of(reserving(wanted).strategy)) == text


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"\x9f" * 100_000,
        cbor2.dumps({"nonce": 0}),
        cbor2.dumps({"nonce": 0, "contents": {}}),
        cbor2.dumps({"nonce": 0, "contents": {"SomethingElse": {}}}),
        cbor2.dumps({"nonce": -1, "contents": {"FailChunk": {"id": {"submission_id": 1, "chunk_index": 0}}}}),
        cbor2.dumps({"nonce": 0, "contents": {"WantToReserveChunks": {"max": 1, "strategy": "Fair"}}}),
        bytes.fromhex(NESTED),
    ],
    ids=range(9),
)
def test_refuses_what_is_no_message(message):
    with pytest.raises(BadMessage):
        messages.read_request(message)


def test_says_what_the_server_of_opsqueue_says():
    assert messages.reservation_expired(ID, 2).hex() == EXPIRED
    assert messages.nothing_wanted(3).hex() == NOTHING_WANTED
    assert messages.chunks_reserved(3, []).hex() == EMPTY
    assert (
        messages.init("x" * 36, 10, 3)
        .hex()
        .startswith(
            "a164496e6974a4776d61785f6d69737361626c655f68656172746265617473037268656172746265"
            "61745f696e74657276616ca264736563730a656e616e6f73006c76657273696f6e5f696e666f6776302e33302e3367636f6e6e5f69647824"
        )
    )
    chunk = {"submission_id": ID, "chunk_index": 2, "input_content": None, "retries": 0}
    facts = Facts(Format("p", 20), {"id": 42}, None, 5)
    assert messages.chunks_reserved(0, [(chunk, shown(ID, facts, 0))]).hex().startswith(RESERVED)


def test_reads_the_submissions_of_producers():
    stored = messages.read_insert(
        b'{"chunk_contents":{"SeeObjectStorage":{"prefix":"01a21ee1-4d9c-7383-ba61-301c57c1a2ff","count":5}},'
        b'"metadata":[0,255,104,105],"strategic_metadata":{"id":42},"chunk_size":20}'
    )
    assert stored.chunk_contents.see_object_storage.count == 5
    assert (bytes(stored.metadata), stored.strategic_metadata, stored.chunk_size) == (b"\0\xffhi", {"id": 42}, 20)
    direct = messages.read_insert(
        b'{"chunk_contents":{"Direct":{"contents":[[1,255],null]}},"metadata":null,'
        b'"strategic_metadata":{},"chunk_size":null}'
    )
    assert direct.chunk_contents.direct.contents == [[1, 255], None]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        b'{"chunk_contents": {}}',
        b'{"chunk_contents": {"Direct": {"contents": [[256]]}}}',
        b'{"chunk_contents": {"Direct": {"contents": []}, "SeeObjectStorage": {"prefix": "p", "count": 1}}}',
        b'{"chunk_contents": {"SeeObjectStorage": {"prefix": "p", "count": -1}}}',
        json.dumps({"chunk_contents": {"SeeObjectStorage": {"prefix": "p" * 1025, "count": 1}}}).encode(),
        b'{"chunk_contents": {"SeeObjectStorage": {"prefix": "p", "count": 1}}, "strategic_metadata": {"a": "b"}}',
    ],
    ids=range(10),
)
def test_refuses_what_is_no_submission(body):
    with pytest.raises(BadMessage):
        messages.read_insert(body)
