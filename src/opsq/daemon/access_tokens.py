"""The tokens that permit use of the daemon over TCP; they are compared in constant time, and never logged or echoed."""

from __future__ import annotations

import hmac
import os
import secrets
import stat

from opsq.errors import InputUnreadable, NotPermitted, UsageError
from opsq.settings import Settings
from opsq.users import open_file

_SHORTEST = 16


class AccessTokens:
    """The valid tokens: the operator's permits everything, the client's permits no operator request."""

    def __init__(self, operator: str, client: str | None) -> None:
        self._operator = operator.encode()
        self._client = client.encode() if client is not None else None

    def is_operator(self, presented: str) -> bool:
        """Whether the token is the operator's (true) or the client's (false).

        Raises:
            NotPermitted: it is neither.
        """
        text = presented.encode()
        is_operator = hmac.compare_digest(text, self._operator)
        is_client = self._client is not None and hmac.compare_digest(text, self._client)
        if not is_operator and not is_client:
            raise NotPermitted(
                "The token is missing or wrong.", hint="Pass the daemon's token with --token-file or OPSQ_TOKEN_FILE."
            )
        return is_operator


def load_tokens(settings: Settings) -> AccessTokens:
    """Read the tokens; the operator's is generated if there is none.

    Effects: may write `token_file`, mode 0600.

    Raises:
        NotPermitted: other users can read a token file.
        UsageError: a token is too short.
        InputUnreadable: a file cannot be read or written.
    """
    try:
        descriptor = open_file(settings.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        pass
    except OSError as error:
        raise InputUnreadable(f"Cannot write the token file {settings.token_file}: {error.strerror}.") from error
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    is_client_wanted = settings.source("client_token_file") != "default" or os.path.exists(settings.client_token_file)
    return AccessTokens(_read(settings.token_file), _read(settings.client_token_file) if is_client_wanted else None)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except OSError as error:
        raise InputUnreadable(f"Cannot read the token file {path}: {error.strerror}.") from error
    if mode & 0o077:
        raise NotPermitted(
            f"Other users can read the token file {path} (mode {stat.S_IMODE(mode):04o}).",
            hint=f"Run: chmod 600 {path}",
        )
    if len(token) < _SHORTEST:
        raise UsageError(
            f"The token in {path} is shorter than {_SHORTEST} characters.",
            hint="Remove the file: `opsq start` generates a new one.",
        )
    return token
