"""The file of tokens: made, changed by one at a time, and refused where it is not what it should be."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opsq.daemon import tokens_file
from opsq.errors import Conflict, InputUnreadable, NotFound, NotPermitted, UsageError

PRODUCERS = frozenset(("producer",))


def test_file_has_hashes_and_no_token(tmp_path: Path):
    path = tmp_path / "tokens"
    token = tokens_file.create(str(path), "etl", PRODUCERS)
    assert len(token) == 64
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in path.read_text()
    [entry] = tokens_file.entries(str(path))
    assert (entry.name, entry.roles, entry.digest) == ("etl", PRODUCERS, tokens_file.digest_of(token))
    assert sorted(os.listdir(tmp_path)) == ["tokens"]


def test_two_who_make_tokens_at_once_lose_none(tmp_path: Path):
    path = str(tmp_path / "tokens")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: tokens_file.create(path, f"t{n}", PRODUCERS), range(40)))
    assert {entry.name for entry in tokens_file.entries(path)} == {f"t{n}" for n in range(40)}


def test_names_are_unique_and_only_known_ones_are_revoked(tmp_path: Path):
    path = str(tmp_path / "tokens")
    tokens_file.create(path, "etl", PRODUCERS)
    with pytest.raises(Conflict, match="already a token etl"):
        tokens_file.create(path, "etl", PRODUCERS)
    with pytest.raises(NotFound, match="no token other"):
        tokens_file.revoke(path, "other")
    tokens_file.revoke(path, "etl")
    assert tokens_file.entries(path) == []


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-x", "x" * 65, "ü", "a#"])
def test_name_that_would_break_a_line_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="cannot be the name of a token"):
        tokens_file.create(str(tmp_path / "tokens"), name, PRODUCERS)


@pytest.mark.parametrize(
    "line",
    [
        "etl producer 0",
        "etl nobody 0 " + "0" * 64,
        "etl producer 0 " + "0" * 62,
        "etl producer x " + "0" * 64,
        "etl producer 0 " + "g" * 64,
    ],
)
def test_line_that_is_none_is_named(tmp_path: Path, line: str):
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(UsageError, match="Line 3 of the tokens in"):
        tokens_file.entries(str(path))


def test_file_that_others_can_read_is_refused(tmp_path: Path):
    path = tmp_path / "tokens"
    path.touch()
    path.chmod(0o640)
    with pytest.raises(NotPermitted, match="mode 0640"):
        tokens_file.entries(str(path))
    path.chmod(0o600)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputUnreadable, match="is not text"):
        tokens_file.entries(str(path))
