"""Where a daemon listens: addresses as people type them, as the settings give them, and the token that goes with them.

This file connects to nothing (see transport.py), and reads settings only when an address or a token is left to them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from opsq.client.core.arguments import path as path_of
from opsq.errors import InputUnreadable, UsageError
from opsq.units import format_address, split_addresses

if TYPE_CHECKING:
    from opsq.settings import Settings


class TlsAddress(NamedTuple):
    """Host and port of a daemon that speaks TLS.

    Args:
        ca_file: who must have signed its certificate; empty: whom the system trusts.
        cert_file, key_file: this side's own certificate, if the daemon wants one; the key may be in the same file.
    """

    host: str
    port: int
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


class ShardedAddress(NamedTuple):
    """Daemons that are one queue to their client.

    Args:
        parts: the address of each.
        file: has an address on each line instead, and is read again when it changes; empty: there is none.
        shard_by: the key of the metadata whose value says where a submission goes; empty: where there is most room.
        served: consumers take chunks of these shards only; empty: of all.
        tls_files: for addresses with TLS in the file that name none: of the CA, and of this side's certificate and key.
    """

    parts: tuple[str | tuple[str, int] | TlsAddress, ...]
    file: str = ""
    shard_by: str = ""
    served: frozenset[int] = frozenset()
    tls_files: tuple[str, str, str] = ("", "", "")


Address = str | tuple[str, int] | TlsAddress
"""Where a daemon listens: the path of a Unix socket, or host and port, with or without TLS."""
Target = Address | ShardedAddress
"""What a client connects to."""

_TLS_FILES = {"ca": "ca_file", "cert": "cert_file", "key": "key_file"}


def parse_address(text: str) -> Address:
    """Read an address as people type it.

    It is a path if it has a slash or no colon, else `host:port`; `unix:` or `tcp://` may stand in front. With `tls://`
    in front it is one with TLS, and `?ca=FILE&cert=FILE&key=FILE` may stand behind it.

    Raises:
        UsageError: `text` is `host:port` with a port that is no number below 65536, or names unknown files.
    """
    if text.startswith("tls://"):
        from urllib.parse import parse_qsl

        plain, _, query = text.removeprefix("tls://").partition("?")
        files = dict(parse_qsl(query))
        if set(files) - set(_TLS_FILES):
            raise UsageError(
                f"{text!r} is not an address.", hint="What may follow the port is ?ca=FILE&cert=FILE&key=FILE."
            )
        host, port = _host_and_port("tcp://" + plain, text)
        return TlsAddress(host, port, **{_TLS_FILES[name]: path for name, path in files.items()})
    if text.startswith("unix:"):
        return text.removeprefix("unix:").removeprefix("//")
    is_tcp = text.startswith("tcp://")
    rest = text.removeprefix("tcp://")
    if not is_tcp and ("/" in rest or ":" not in rest):
        return rest
    return _host_and_port(text, text)


def parse_target(text: str) -> Target:
    """Read the address of a daemon, several with commas between them, or `@FILE`, which has one on each line.

    Raises:
        UsageError: as `parse_address`; or two of them are the same.
        InputUnreadable: the file cannot be read.
    """
    if text.startswith("@"):
        return ShardedAddress(read_addresses(text[1:]), text[1:])
    parts = split_addresses(text)
    return parse_address(text) if len(parts) == 1 else ShardedAddress(_each(parts))


def read_addresses(path: str, tls_files: tuple[str, str, str] = ("", "", "")) -> tuple[Address, ...]:
    """The addresses in a file: one on each line, without empty lines and those that begin with #.

    Args:
        path: of the file.
        tls_files: see `ShardedAddress`.

    Raises:
        UsageError: one cannot be understood, two are the same, or there is none.
        InputUnreadable: the file cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise InputUnreadable(f"The addresses of the shards cannot be read: {path}: {error.strerror}.") from error
    found = _each([line for line in lines if line and not line.startswith("#")], path)
    return tuple(_with_files(address, *tls_files) for address in found)


def _each(texts: list[str], path: str = "") -> tuple[Address, ...]:
    found = tuple(parse_address(text.strip()) for text in texts if text.strip())
    if not found:
        raise UsageError(f"There is no address in {path or repr(','.join(texts))}.")
    for address in found:
        if found.count(address) > 1:
            raise UsageError(f"{show_address(address)} is named twice{f' in {path}' if path else ''}.")
    return found


def _host_and_port(text: str, whole: str) -> tuple[str, int]:
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(
            f"{whole!r} is not an address.", hint="An address is a socket path, HOST:PORT or tls://HOST:PORT."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(address: Target) -> str:
    """An address as messages name it."""
    if isinstance(address, str):
        return address
    if isinstance(address, ShardedAddress):
        return f"@{address.file}" if address.file else ",".join(map(show_address, address.parts))
    return ("tls://" if isinstance(address, TlsAddress) else "") + format_address(*address[:2])


def write_address(address: Target) -> str:
    """An address that `parse_target` reads again, with all its files."""
    if isinstance(address, ShardedAddress) and not address.file:
        return ",".join(map(write_address, address.parts))
    if not isinstance(address, TlsAddress):
        return show_address(address)
    from urllib.parse import urlencode

    files = {name: path for name, field in _TLS_FILES.items() if (path := getattr(address, field))}
    return show_address(address) + (f"?{urlencode(files)}" if files else "")


def address_of(settings: Settings) -> Target:
    """Where the settings say that the daemon is: their address, if no --socket was given, else their socket."""
    if not settings.address or settings.source("socket") == "--socket":
        return settings.socket
    return complete(parse_target(settings.address), settings)


def complete(address: Target, settings: Settings) -> Target:
    """An address with what it does not say itself and the settings do: files for TLS, and what concerns shards."""
    if not isinstance(address, ShardedAddress):
        return _with_files(address, *_files_of(settings))
    return address._replace(
        parts=tuple(_with_files(part, *_files_of(settings)) for part in address.parts),
        tls_files=_files_of(settings),
        shard_by=address.shard_by or settings.shard_by,
        served=address.served or settings.shards,
    )


def _by(address: Target, shard_by: str) -> Target:
    return address._replace(shard_by=shard_by) if shard_by and isinstance(address, ShardedAddress) else address


def is_local(address: Target) -> bool:
    """Whether it needs no token: only sockets of this machine are in it."""
    return all(isinstance(part, str) for part in (address.parts if isinstance(address, ShardedAddress) else [address]))


def _files_of(settings: Settings) -> tuple[str, str, str]:
    return settings.tls_ca_file, settings.tls_client_cert_file, settings.tls_client_key_file


def _with_files(address: Address, ca_file: str, cert_file: str, key_file: str) -> Address:
    """An address with the files for TLS that it does not name itself."""
    if not isinstance(address, TlsAddress):
        return address
    return address._replace(
        ca_file=address.ca_file or ca_file,
        cert_file=address.cert_file or cert_file,
        key_file=address.key_file or (key_file if not address.cert_file else ""),
    )


def find_daemon(
    address: str | os.PathLike[str] | tuple[str, int] | TlsAddress | ShardedAddress | None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    shard_by: str = "",
) -> tuple[Target, str]:
    """Address and token for the arguments of `connect`.

    Raises:
        UsageError: a setting or the address cannot be understood.
        InputUnreadable: a token is needed, and its file cannot be read.
    """
    if address is None:
        from opsq.settings import load

        settings = load({"state_dir": None if state_dir is None else os.fspath(state_dir)})
        target = _by(settings.socket if state_dir is not None else address_of(settings), shard_by)
        if is_local(target):
            return target, ""
        return target, read_token(settings) if token is None else token
    target = _by(address if isinstance(address, tuple) else parse_target(path_of("address", address)), shard_by)
    if isinstance(target, str):
        return target, ""
    is_complete = isinstance(address, tuple) or not isinstance(target, TlsAddress | ShardedAddress)
    if token is None or not is_complete:
        from opsq.settings import load

        settings = load()
        target = complete(target, settings)
        if is_local(target):
            return target, ""
        token = read_token(settings) if token is None else token
    return target, token


def token_in(path: str) -> str:
    """The token that stands in a file.

    Raises:
        OSError: it cannot be.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read().strip()


def read_token(settings: Settings) -> str:
    """Return the token with which to say hello over TCP.

    It is in the file given by --token-file, else in `OPSQ_TOKEN`, else in the token file of the settings, else in the
    client token file.

    Raises:
        InputUnreadable: there is none.
    """
    is_by_flag = settings.source("token_file") == "--token-file"
    if not is_by_flag and (token := os.environ.get("OPSQ_TOKEN")):
        return token
    failure: OSError | None = None
    for path in (settings.token_file, *([] if is_by_flag else [settings.client_token_file])):
        try:
            return token_in(path)
        except OSError as error:
            failure = failure or error
    reason = failure.strerror if failure else "not found"
    raise InputUnreadable(
        f"There is no token for the daemon: {settings.token_file}: {reason}.",
        hint="Pass a token with OPSQ_TOKEN, or a token file with --token-file or OPSQ_TOKEN_FILE.",
    )
