"""Formats of operations: what goes in comes out, joined chunks hold what their parts hold.

And what is wrong is named.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.errors import InputUnreadable, UsageError
from opsq.serialisation import Bytes, JsonLines, MessagePack, Serialisation, TextLines, find

NAMES = ("bytes", "text", "json", "msgpack")
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
SCALARS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)
RECORDS = {
    "bytes": st.lists(st.binary().filter(lambda record: b"\n" not in record)),
    "text": st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"))),
    "json": st.lists(VALUES),
    "msgpack": st.lists(VALUES | st.binary()),
}


class Point(msgspec.Struct):
    x: int


class Place(msgspec.Struct):
    x: float


class Squares(Serialisation):
    """A format of somebody's own."""

    def decode(self, data: bytes) -> list[int]:
        return [byte * byte for byte in data]

    def encode(self, records: Any) -> bytes:
        return bytes(len(records))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_what_is_encoded_is_decoded_and_joins(name: str, data: st.DataObject) -> None:
    """Empty records, line ends inside JSON strings and NUL included."""
    serialisation = find(name)
    first, second = data.draw(RECORDS[name]), data.draw(RECORDS[name])
    assert serialisation.decode(serialisation.encode(first)) == first
    assert serialisation.decode(serialisation.encode(first) + serialisation.encode(second)) == first + second


@given(records=st.lists(st.binary(max_size=6)), delimiter=st.sampled_from([b"\0", b"\n\n", b"ab", b"aba", b"--"]))
def test_any_delimiter_comes_back_or_is_refused(records: list[bytes], delimiter: bytes) -> None:
    serialisation = Bytes(delimiter)
    try:
        data = serialisation.encode(records)
    except UsageError as error:
        number = int(error.message.split()[1])
        assert serialisation.decode(records[number - 1] + delimiter) != [records[number - 1]]
    else:
        assert serialisation.decode(data) == records
        assert serialisation.decode(data + data) == records * 2


@given(records=st.lists(st.sampled_from([b"a", b"ab", b"", b"ba", b"aab"])))
def test_a_delimiter_that_overlaps_itself_comes_back_or_is_refused(records: list[bytes]) -> None:
    serialisation = Bytes(b"aba")
    if all(serialisation.decode(record + b"aba") == [record] for record in records):
        assert serialisation.decode(serialisation.encode(records)) == records
    else:
        with pytest.raises(UsageError, match=r"Record \d+ cannot be distinguished"):
            serialisation.encode(records)


@pytest.mark.parametrize(
    ("name", "data", "records"),
    [
        ("bytes", b"a\nb", [b"a", b"b"]),
        ("bytes", b"\n\n", [b"", b""]),
        ("bytes", b"a\r\n\0\n", [b"a\r", b"\0"]),
        ("text", "é\nb".encode(), ["é", "b"]),
        ("text", "a\u2028b\x0bc\n".encode(), ["a\u2028b\x0bc"]),
        ("json", b'{"a": 1}\n2', [{"a": 1}, 2]),
        ("json", b'1\r\n\n  \n"\\n"\n', [1, "\n"]),
        ("msgpack", b"", []),
        ("json", b"", []),
        ("text", b"", []),
        ("bytes", b"", []),
    ],
)
def test_a_missing_last_line_end_and_odd_bytes(name: str, data: bytes, records: list[Any]) -> None:
    assert find(name).decode(data) == records


@pytest.mark.parametrize(
    ("serialisation", "data", "message"),
    [
        (TextLines(), b"ok\nno\xff\n", "Record 2 is not UTF-8: invalid start byte .byte 0xff."),
        (JsonLines(), b"1\n\n{\n", "Line 3 is not the expected JSON"),
        (JsonLines(), b'"\xff"\n', "Line 1 is not the expected JSON"),
        (JsonLines(), b"1 2\n", "Line 1 is not the expected JSON"),
        (JsonLines(), b'{"a":\n1}\n', "Line 1 is not the expected JSON"),
        (JsonLines(int), b'1\n"x"\n', "Line 2 is not the expected JSON.*Expected `int`, got `str`"),
        (
            MessagePack(int),
            MessagePack().encode([1]) + MessagePack().encode([2, "x"]),
            "Record 3 is not the expected MessagePack.*Expected `int`",
        ),
        (MessagePack(), b"\0\0\0\x05\x91", "behind record 0 is cut off, and lacks 4 bytes"),
        (MessagePack(), MessagePack().encode([7]) + b"\0", "behind record 1 is cut off"),
        (MessagePack(), b"\0\0\0\x01\x07", "behind record 0 is not a MessagePack array"),
        (MessagePack(), b"\0\0\0\x02\x91\xc1", "behind record 0 is not a MessagePack array"),
    ],
)
def test_what_cannot_be_read_is_named(serialisation: Serialisation, data: bytes, message: str) -> None:
    with pytest.raises(InputUnreadable, match=message):
        serialisation.decode(data)


@pytest.mark.parametrize(
    ("serialisation", "records", "message"),
    [
        (Bytes(), [b"a", b"b\nc"], "Record 2 cannot be distinguished from its delimiter"),
        (Bytes(), [b"a", "b"], "Record 2 is of type str; it must be bytes"),
        (TextLines(), ["a", "b\nc"], "Record 2 contains a line end"),
        (TextLines(), ["a", b"b"], "Record 2 is of type bytes; it must be a str"),
        (TextLines(), ["a", "\ud800"], "Record 2 cannot be written in UTF-8"),
        (JsonLines(), [1, object()], "Record 2 cannot be written as JSON"),
        (MessagePack(), [1, 1 << 64], "Record 2 cannot be written as MessagePack"),
    ],
)
def test_what_cannot_be_written_is_named(serialisation: Serialisation, records: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serialisation.encode(records)


ODD_NUMBERS = st.recursive(
    SCALARS | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@given(records=st.lists(ODD_NUMBERS))
def test_number_that_json_does_not_have_is_refused_and_no_other(records: list[Any]) -> None:
    """The json module is stricter than msgspec, which writes null for such a number."""
    try:
        json.dumps(records, allow_nan=False)
    except ValueError:
        with pytest.raises(UsageError, match=r"Record \d+ cannot be written as JSON: \$.* is (nan|inf|-inf)\."):
            JsonLines().encode(records)
    else:
        assert JsonLines().decode(JsonLines().encode(records)) == records


def test_place_of_a_number_that_json_does_not_have_is_told() -> None:
    with pytest.raises(UsageError, match=r"Record 2 .*: \$\.a\[1\]\.x is nan\."):
        JsonLines().encode([1 << 80, {"n": None, "a": [1, Place(math.nan)]}])


SELF_HOLDING: list[Any] = []
SELF_HOLDING.append({"a": SELF_HOLDING})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": [1, {"b": object()}]}, r"at \$\.a\[1\]\.b: Encoding objects of type object"),
        ({"a": {(1, 2): 3}}, r"at \$\.a: Only dicts with str-like or number-like keys"),
        (({None: 1},), r"at \$\[0\]: Only dicts"),
        (object(), "Encoding objects"),
        (SELF_HOLDING, "[Mm]aximum recursion"),
    ],
)
def test_what_cannot_be_written_is_refused_with_its_place(record: object, reason: str) -> None:
    with pytest.raises(UsageError, match=f"Record 2 cannot be written as JSON: {reason}"):
        JsonLines().encode([1, record])


def test_values_that_json_has_no_type_for_are_written_and_read_as_documented() -> None:
    moment = dt.datetime(2026, 3, 29, 2, 30, tzinfo=dt.UTC)
    assert JsonLines().encode([{1: {2.5: {3}}}]) == b'{"1":{"2.5":[3]}}\n'
    values = [(1, 2), decimal.Decimal("1.50"), moment, b"x", Place(1.5)]
    lines = JsonLines().encode(values)
    assert lines == b'[1,2]\n"1.50"\n"2026-03-29T02:30:00Z"\n"eA=="\n{"x":1.5}\n'
    for value, line in zip(values, lines.splitlines(), strict=True):
        assert JsonLines(type(value)).decode(line) == [value]


def test_no_record_is_written_for_none_where_none_is_no_value() -> None:
    assert find("bytes").encode([None, b"a", None, bytearray(b"b"), memoryview(b"c")]) == b"a\nb\nc\n"
    assert find("text").encode([None, "a", None]) == b"a\n"
    assert find("text").encode([None]) == find("bytes").encode([None]) == b""
    assert find("json").encode([None]) == b"null\n"
    assert find("msgpack").decode(find("msgpack").encode([None])) == [None]


def test_types_are_made_as_asked_for() -> None:
    assert JsonLines(Point).decode(b'{"x": 1}\n') == [Point(1)]
    assert MessagePack(Point).decode(MessagePack().encode([Point(1)])) == [Point(1)]


@pytest.mark.parametrize("serialisation", [JsonLines(Point), MessagePack(Point)])
def test_a_typed_format_keeps_its_type_in_a_worker_process(serialisation: Serialisation) -> None:
    again = pickle.loads(pickle.dumps(serialisation))
    assert again.decode(again.encode([Point(1)])) == [Point(1)]
    with pytest.raises(InputUnreadable, match="Expected"):
        again.decode(again.encode([1]))


def test_untyped_formats_can_be_sent_to_a_worker_process() -> None:
    assert pickle.loads(pickle.dumps(Bytes(b"\0"))).encode([b"a"]) == b"a\0"
    assert pickle.loads(pickle.dumps(TextLines())).encode(["a"]) == b"a\n"


def test_names_and_objects_are_found() -> None:
    mine = Squares()
    assert find(mine) is mine
    with pytest.raises(UsageError, match=r"'pickle' is not a serialisation.*bytes, text, json, msgpack"):
        find("pickle")
    with pytest.raises(UsageError, match="at least one byte"):
        Bytes(b"")
