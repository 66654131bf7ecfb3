"""The file of named tokens: one line each, with the token's name, its roles, when it was made, and its SHA-256.

This file must not know connections. The tokens themselves are not stored: who reads the file cannot use them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from opsq.errors import Conflict, InputUnreadable, NotFound, NotPermitted, UsageError
from opsq.private_file import changing
from opsq.wire.roles import parse_roles, role_names

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_LIMIT_BYTES = 1 << 20


class TokenEntry(NamedTuple):
    """A token that lets in: what it is called, and what it permits. `digest` is the SHA-256 of its text."""

    name: str
    roles: frozenset[str]
    digest: bytes
    created_at: int = 0
    """Seconds since 1970; 0: not known."""


def digest_of(token: str) -> bytes:
    """What is stored of a token. Tokens are long and random, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def read_private(path: str) -> str:
    """Read a file of secrets.

    Raises:
        NotPermitted: other users can read or write it.
        InputUnreadable: it is not there, cannot be read, or is no text.
    """
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LIMIT_BYTES)
    except OSError as error:
        raise InputUnreadable(f"Cannot read the token file {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputUnreadable(f"The token file {path} is not text: {error}.") from error
    if mode & 0o077:
        raise NotPermitted(
            f"Other users can read the token file {path} (mode {stat.S_IMODE(mode):04o}).",
            hint=f"Run: chmod 600 {path}",
        )
    return text


def entries(path: str) -> list[TokenEntry]:
    """The tokens of the file; none if there is no file.

    Raises:
        NotPermitted, InputUnreadable: as `read_private`.
        UsageError: a line is not what it should be, or a name stands twice.
    """
    if not os.path.lexists(path):
        return []
    found: dict[str, TokenEntry] = {}
    for number, line in enumerate(read_private(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, roles, created_at, digest = line.split()
            entry = TokenEntry(name, parse_roles(roles), bytes.fromhex(digest), int(created_at))
            if not _NAME.fullmatch(name) or len(entry.digest) != hashlib.sha256().digest_size or name in found:
                raise ValueError("expected a name, its roles, when it was made and a SHA-256, and each name only once")
        except ValueError as error:
            raise UsageError(f"Line {number} of the tokens in {path}: {error}.") from error
        found[name] = entry
    return list(found.values())


def create(path: str, name: str, roles: frozenset[str]) -> str:
    """Make a new token; returns its text, which is stored nowhere.

    Raises:
        Conflict: there is a token of that name.
        UsageError: the name is not possible; others as `entries`.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a token.",
            hint="A name has up to 64 letters, digits and _ . @ -, such as etl-1.",
        )
    token = secrets.token_hex(32)
    with _changing(path) as found:
        if any(entry.name == name for entry in found):
            raise Conflict(f"There is already a token {name}.", hint=f"Revoke it first: opsq token revoke {name}")
        found.append(TokenEntry(name, roles, digest_of(token), int(time.time())))
    return token


def revoke(path: str, name: str) -> None:
    """Remove a token.

    Raises:
        NotFound: there is none of that name; others as `entries`.
    """
    if not os.path.exists(path):
        raise NotFound(f"There is no token {name}.", hint="`opsq token create` makes one.")
    with _changing(path) as found:
        kept = [entry for entry in found if entry.name != name]
        if len(kept) == len(found):
            raise NotFound(f"There is no token {name}.", hint="`opsq token list` shows the existing ones.")
        found[:] = kept


@contextlib.contextmanager
def _changing(path: str) -> Iterator[list[TokenEntry]]:
    """The entries, which are written back as they are at the end, by one process at a time."""
    with changing(path) as replace:
        found = entries(path)
        yield found
        text = "".join(f"{e.name} {role_names(e.roles)} {e.created_at} {e.digest.hex()}\n" for e in found)
        text = "# Tokens by their SHA-256; `opsq token` changes this file, and a daemon notices.\n" + text
        replace(text.encode())
