"""Where a daemon listens: addresses as people type them, as the settings give them, and the token that goes with them.

This file connects to nothing (see transport.py), and reads settings only when an address or a token is left to them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opsq.client.core.arguments import path as path_of
from opsq.errors import InputUnreadable, UsageError

if TYPE_CHECKING:
    from opsq.settings import Settings

Address = str | tuple[str, int]
"""Where a daemon listens: the path of a Unix socket, or host and port."""


def parse_address(text: str) -> Address:
    """Read an address as people type it.

    It is a path if it has a slash or no colon, else `host:port`; `unix:` or `tcp://` may stand in front.

    Raises:
        UsageError: `text` is `host:port` with a port that is no number below 65536.
    """
    if text.startswith("unix:"):
        return text.removeprefix("unix:").removeprefix("//")
    is_tcp = text.startswith("tcp://")
    rest = text.removeprefix("tcp://")
    if not is_tcp and ("/" in rest or ":" not in rest):
        return rest
    host, _, port = rest.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address.", hint="An address is a socket path, or host:port.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def show_address(address: Address) -> str:
    """An address as messages name it."""
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


def find_daemon(
    address: str | os.PathLike[str] | tuple[str, int] | None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
) -> tuple[Address, str]:
    """Address and token for the arguments of `connect`.

    Raises:
        UsageError: a setting or the address cannot be understood.
        InputUnreadable: a token is needed, and its file cannot be read.
    """
    if address is None:
        from opsq.settings import load
        from opsq.units import split_address

        settings = load({"state_dir": None if state_dir is None else os.fspath(state_dir)})
        if state_dir is not None or not settings.address:
            return settings.socket, ""
        return split_address(settings.address), read_token(settings) if token is None else token
    target = address if isinstance(address, tuple) else parse_address(path_of("address", address))
    if token is None and not isinstance(target, str):
        from opsq.settings import load

        token = read_token(load())
    return target, token or ""


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
            with open(path, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError as error:
            failure = failure or error
    reason = failure.strerror if failure else "not found"
    raise InputUnreadable(
        f"There is no token for the daemon: {settings.token_file}: {reason}.",
        hint="Pass a token with OPSQ_TOKEN, or a token file with --token-file or OPSQ_TOKEN_FILE.",
    )
