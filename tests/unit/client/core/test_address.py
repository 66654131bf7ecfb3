"""Addresses of several daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.client.core.address import (
    ShardedAddress,
    TlsAddress,
    address_of,
    find_daemon,
    is_local,
    parse_target,
    show_address,
    write_address,
)
from opsq.client.core.transport import connected_socket
from opsq.errors import InputUnreadable, Unreachable, UsageError
from opsq.settings import load


def test_one_address_is_that_of_a_daemon() -> None:
    assert parse_target("a:7400") == ("a", 7400)
    assert parse_target("/run/opsq.sock") == "/run/opsq.sock"


def test_addresses_with_commas_are_shards_of_any_kind() -> None:
    found = parse_target("a:7400, /run/b.sock,tls://c:7400?ca=/ca.pem")
    assert found == ShardedAddress((("a", 7400), "/run/b.sock", TlsAddress("c", 7400, "/ca.pem")))
    assert show_address(found) == "a:7400,/run/b.sock,tls://c:7400"
    assert parse_target(write_address(found)) == found


@pytest.mark.parametrize("path", ["/tmp/st[1] %41{a,b}*?\\c/opsq.sock", "/srv/a, b/opsq.sock", "/srv/a,b:c/opsq.sock"])
def test_comma_in_the_path_of_a_socket_is_a_part_of_it(path: str) -> None:
    assert parse_target(path) == path
    assert parse_target(f"{path},/run/b.sock") == ShardedAddress((path, "/run/b.sock"))
    assert parse_target(f"{path},./b.sock,../c.sock") == ShardedAddress((path, "./b.sock", "../c.sock"))
    assert address_of(load(environ={"OPSQ_ADDRESS": path})) == path


def test_missing_socket_with_a_comma_says_how_to_name_several() -> None:
    with pytest.raises(Unreachable) as caught:
        connected_socket("a/opsq.sock,b/opsq.sock")
    assert caught.value.hint is not None
    assert "begins with / or ./" in caught.value.hint


def test_file_has_an_address_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "shards"
    path.write_text("# of the pipeline\na:7400\n\n b:7400 \n")
    found = parse_target(f"@{path}")
    assert found == ShardedAddress((("a", 7400), ("b", 7400)), str(path))
    assert show_address(found) == f"@{path}"


@pytest.mark.parametrize(
    ("content", "said"), [("", "no address"), ("a:1\na:1\n", "named twice"), ("a:port\n", "not an address")]
)
def test_file_that_makes_no_sense_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "shards"
    path.write_text(content)
    with pytest.raises(UsageError, match=said):
        parse_target(f"@{path}")


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="shards cannot be read"):
        parse_target(f"@{tmp_path / 'none'}")


@pytest.mark.parametrize("text", ["a:1,a:1", ",", "a:1,b:x"])
def test_list_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_settings_say_what_concerns_shards() -> None:
    environ = {"OPSQ_ADDRESS": "a:1,b:2", "OPSQ_SHARD_BY": "tenant", "OPSQ_SHARDS": "0-2,7"}
    found = address_of(load(environ=environ))
    assert found == ShardedAddress((("a", 1), ("b", 2)), "", "tenant", frozenset({0, 1, 2, 7}))


@pytest.mark.parametrize("text", ["x", "3-1", "0-5000", "-1"])
def test_numbers_of_shards_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="OPSQ_SHARDS"):
        load(environ={"OPSQ_SHARDS": text})


def test_sockets_of_this_machine_need_no_token(tmp_path: Path) -> None:
    assert is_local(parse_target("/run/a.sock,/run/b.sock"))
    assert not is_local(parse_target("/run/a.sock,b:1"))
    found, token = find_daemon("/run/a.sock,/run/b.sock", shard_by="tenant")
    assert isinstance(found, ShardedAddress)
    assert (found.shard_by, token) == ("tenant", "")
    assert find_daemon("/run/a.sock,b:1", token="secret")[1] == "secret"
