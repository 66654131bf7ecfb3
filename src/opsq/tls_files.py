"""Loads the files of TLS into a context, for daemon and clients alike; an error says which file, and what is wrong.

This file must not decide what a context checks, and is loaded only where TLS is used: the module ssl costs 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Iterator
from typing import NoReturn

from opsq.errors import InputUnreadable, NotPermitted


@contextlib.contextmanager
def reading_ca(ca_file: str) -> Iterator[None]:
    """Around what loads the certificates of a CA.

    Raises:
        InputUnreadable: the file cannot be read, or has no certificates.
    """
    _mode_of(ca_file)
    try:
        yield
    except OSError as error:  # ssl's own errors too
        raise InputUnreadable(f"{ca_file} contains no CA certificate in PEM format{_reason(error)}.") from error


def identify(context: ssl.SSLContext, cert_file: str, key_file: str, *, is_private: bool) -> None:
    """Use a certificate; without `key_file` its key is in the same file.

    Raises:
        NotPermitted: other users can read the key, and `is_private` forbids that.
        InputUnreadable: a file cannot be read, or they are not a certificate and its key.
    """
    _mode_of(cert_file)
    mode = _mode_of(key_file or cert_file)
    if is_private and mode & 0o007:
        raise NotPermitted(
            f"Other users can read the TLS key {key_file or cert_file} (mode {stat.S_IMODE(mode):04o}).",
            hint=f"Run: chmod o= {key_file or cert_file}",
        )

    def refuse() -> NoReturn:
        raise InputUnreadable(
            f"The TLS key {key_file or cert_file} needs a passphrase.",
            hint="It cannot be typed in here. Remove it with: openssl pkey -in KEY -out NEW",
        )

    try:
        context.load_cert_chain(cert_file, key_file or None, refuse)
    except OSError as error:
        where = f"{cert_file} and {key_file} are not" if key_file else f"{cert_file} does not contain"
        raise InputUnreadable(
            f"{where} a certificate and its key in PEM format{_reason(error)}.",
            hint="" if key_file else "If the key is in a file of its own, name that, too (tls_key_file).",
        ) from error


def _mode_of(path: str) -> int:
    """The mode of a file that can be read; ssl does not say which of its files cannot."""
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise InputUnreadable(f"Cannot read the TLS file {path}: {error.strerror}.") from error


def _reason(error: OSError) -> str:
    """What OpenSSL says of a file, if it says more than where in itself it failed."""
    reason = getattr(error, "reason", None) or ""
    return f": {reason.lower().replace('_', ' ')}" if reason else ""
