"""The tokens that let clients in over TCP, read again whenever one of their files changes.

They are compared by hash and in constant time, and never logged or echoed; what a role permits is in `wire.roles`.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
from pathlib import Path

from opsq.daemon.reread_files import RereadFiles
from opsq.daemon.tokens_file import TokenEntry, digest_of, entries, read_private
from opsq.errors import NotPermitted, UsageError
from opsq.settings import Settings
from opsq.store.database_file import cannot_open
from opsq.users import open_file
from opsq.wire.roles import CONSUMER, OPERATOR, PRODUCER

_SHORTEST = 16
_log = logging.getLogger(__name__)


class AccessTokens:
    """The tokens in force.

    Those of `token_file` (role operator) and `client_token_file` (roles producer and consumer) stand in their files as
    they are; those of `tokens_file` by their hashes.

    Effects: writes `token_file`, mode 0600, if there is none: who may read it may operate.

    Raises:
        NotPermitted: other users can read a token file.
        UsageError: a token is too short, or the file of tokens is damaged.
        InputUnreadable: a file cannot be read or written.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_client_token = settings.source("client_token_file") != "default"
        _generate(settings.token_file)
        paths = (settings.token_file, settings.client_token_file, settings.tokens_file)
        self._entries = RereadFiles("the tokens", paths, self._read)

    def find(self, presented: str) -> TokenEntry:
        """The entry of a token that a client presents.

        Raises:
            NotPermitted: there is none.
        """
        self.refresh()
        digest = digest_of(presented)
        found = None
        for entry in self._entries.found:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        if found is None:
            raise NotPermitted(
                "The token is missing or wrong.",
                hint="Pass a token of the daemon with --token-file, OPSQ_TOKEN_FILE or OPSQ_TOKEN.",
            )
        return found

    def is_in_force(self, entry: TokenEntry) -> bool:
        """Whether a token that let somebody in still would, with the same roles."""
        return entry in self._entries.found

    def refresh(self) -> bool:
        """Read the files again if one has changed; whether the tokens are others now."""
        before = self._entries.found
        has_changed = self._entries.refresh() and before != self._entries.found
        if has_changed:
            names = ", ".join(entry.name for entry in self._entries.found)
            _log.info("the tokens have changed: %s", names or "there are none")
        return has_changed

    def _read(self) -> list[TokenEntry]:
        settings = self._settings
        found = []
        if os.path.exists(settings.token_file):
            found.append(_plain("operator", settings.token_file, OPERATOR))
        if self._has_client_token or os.path.exists(settings.client_token_file):
            found.append(_plain("client", settings.client_token_file, PRODUCER, CONSUMER))
        return found + entries(settings.tokens_file)


def _generate(path: str) -> None:
    try:
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    except OSError as error:
        raise cannot_open(Path(path), error) from error
    try:
        os.write(descriptor, secrets.token_hex(32).encode() + b"\n")
    except OSError as error:
        os.unlink(path)
        raise cannot_open(Path(path), error) from error
    finally:
        os.close(descriptor)


def _plain(name: str, path: str, *roles: str) -> TokenEntry:
    token = read_private(path).strip()
    if len(token) < _SHORTEST:
        raise UsageError(
            f"The token in {path} is shorter than {_SHORTEST} characters.",
            hint="Remove the file: `opsq start` generates a new one.",
        )
    return TokenEntry(name, frozenset(roles), digest_of(token))
