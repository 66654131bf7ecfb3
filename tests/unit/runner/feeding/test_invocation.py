"""The words and variables that a program is given for its chunk."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.errors import ContentChanged, UsageError
from opsq.runner.feeding.invocation import Template, metadata_variables
from opsq.runner.feeding.programs import Feeding
from opsq.runner.feeding.record_arguments import ChunkRecords
from opsq.runner.process.pipes import Range

VALUES = {
    "{id}": "S/3",
    "{submission}": "S",
    "{index}": "3",
    "{attempt}": "0",
    "{in}": "/tmp/{id}",
    "{out}": "o",
    "{attachment}": "a",
}
words = st.text(alphabet="{}inoutda x", max_size=12)


def test_placeholders_are_filled_in_wherever_they_stand() -> None:
    template = Template(["run", "--name={id}-{attempt}", "{in}", "plain"])
    assert template.names == {"{id}", "{attempt}", "{in}"}
    assert template.fill(VALUES) == ["run", "--name=S/3-0", "/tmp/{id}", "plain"]


def test_braces_that_are_no_placeholder_stay() -> None:
    command = ["awk", "{print $1}", "{}", "{ id }", "{{id}", "{ID}", "${x}"]
    assert Template(command).fill(VALUES) == ["awk", "{print $1}", "{}", "{ id }", "{S/3", "{ID}", "${x}"]


@given(st.lists(words, max_size=4))
def test_every_text_but_the_placeholders_survives(arguments: list[str]) -> None:
    """Against the naive definition: one name after the other, in texts that hold none of the others."""
    expected = [re.sub(r"\{(in|out|id)\}", lambda found: VALUES[found.group()], argument) for argument in arguments]
    assert Template(["run", *arguments]).fill(VALUES) == ["run", *expected]


@given(st.lists(words, max_size=4), st.binary(max_size=8))
def test_record_stands_wherever_it_is_asked_for_or_comes_last(arguments: list[str], record: bytes) -> None:
    """A record that looks like a placeholder is not searched for one."""
    cut = Template(["run", *arguments], takes_records=True).cut(VALUES)
    got = [record.join(pieces) for pieces in cut]
    if any("{}" in argument for argument in arguments):
        expected = [re.sub(r"\{(in|out|id)\}", lambda found: "\1" + found.group(1), argument) for argument in arguments]
        filled = [argument.encode().replace(b"{}", record) for argument in expected]
        for name in (b"in", b"out", b"id"):
            filled = [argument.replace(b"\1" + name, VALUES[f"{{{name.decode()}}}"].encode()) for argument in filled]
        if b"\1" not in record:
            assert got == [b"run", *filled]
    else:
        assert got == [*(os.fsencode(word) for word in Template(["run", *arguments]).fill(VALUES)), record]


@pytest.mark.parametrize(("command", "takes_records"), [(["{in}"], False), (["./{id}", "x"], False), (["{}"], True)])
def test_name_of_the_program_cannot_be_filled_in(command: list[str], takes_records: bool) -> None:
    with pytest.raises(UsageError, match=r"The name of the program, .* has a placeholder"):
        Template(command, takes_records=takes_records)


def test_metadata_becomes_variables_in_capitals() -> None:
    """Of two keys that become one name, the one that comes last by order holds, whichever was given last."""
    metadata = {"a.b": "last", "a-b": "first", "Tenant": 7, "x": "a\0b"}
    assert metadata_variables(metadata) == {"OPSQ_META_A_B": "last", "OPSQ_META_TENANT": "7", "OPSQ_META_X": "ab"}


@pytest.mark.parametrize(
    ("feeding", "match"),
    [
        (Feeding(each=True, args_count=2), "--each and --args"),
        (Feeding(each=True, server="frames"), "--each and --server"),
        (Feeding(args_count=2, server="records"), "--args and --server"),
        (Feeding(args_count=0), "from 1 on, not 0"),
        (Feeding(each=True, separator=b""), "delimiter of records is empty"),
    ],
)
def test_ways_that_exclude_each_other_are_named(feeding: Feeding, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        feeding.check()


def _naive_records(content: bytes, separator: bytes) -> list[bytes]:
    records = content.split(separator)
    return records if records[-1] else records[:-1]


@given(
    content=st.binary(max_size=300).map(lambda content: content.replace(b"\x01", b"ab")),
    separator=st.sampled_from([b"\n", b"ab", b"\0", b"aa"]),
)
def test_records_of_memory_and_of_a_file_are_those_of_a_split(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, separator: bytes
) -> None:
    path = tmp_path_factory.mktemp("records") / "content"
    path.write_bytes(b"xx" + content + b"yy")
    expected = _naive_records(content, separator)
    assert list(ChunkRecords(content, separator)) == expected
    fd = os.open(path, os.O_RDONLY)
    records = ChunkRecords(Range(fd, 2, len(content), b"no record of it"), separator)
    os.close(fd)
    assert list(records) == expected
    records.close()


def test_records_of_a_long_file_are_read_piece_by_piece(tmp_path: Path) -> None:
    """Separators of two bytes lie across the pieces."""
    content = b"--".join(b"%d" % number for number in range(200_000))
    (tmp_path / "content").write_bytes(content)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    records = ChunkRecords(Range(fd, 0, len(content)), b"--")
    os.close(fd)
    assert list(records) == content.split(b"--")
    records.close()


def test_header_is_no_record() -> None:
    assert list(ChunkRecords(b"id,name\n1,a\n", b"\n", len(b"id,name\n"))) == [b"1,a"]


def test_records_of_a_file_that_was_cut_are_changed_content(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"1\n2\n")
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    records = ChunkRecords(Range(fd, 0, 100, path="in.txt"), b"\n")
    with pytest.raises(ContentChanged, match=r"in\.txt ends before its chunk"):
        list(records)
    records.close()
    os.close(fd)
