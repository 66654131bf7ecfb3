"""TLS to a daemon: contexts, a socket that several threads may use, and what a failure means.

This file must not dial; it is loaded only for addresses with `tls://`, since the module ssl costs a start 10 ms.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading

from opsq.client.core.address import TlsAddress, show_address
from opsq.errors import NotPermitted, OpsqError, ProtocolError, Unreachable
from opsq.tls_files import identify, reading_ca

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE", "PACKET_LENGTH")
_OUR_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")


def client_context(address: TlsAddress) -> ssl.SSLContext:
    """What verifies the daemon, and shows this side's certificate if there is one; files are read each time.

    Raises:
        InputUnreadable: a file cannot be read, or is not what it should be.
    """
    with reading_ca(address.ca_file) if address.ca_file else contextlib.nullcontext():
        context = ssl.create_default_context(cafile=address.ca_file or None)
    if address.cert_file:
        identify(context, address.cert_file, address.key_file, is_private=False)
    return context


def wrap(peer: socket.socket, address: TlsAddress) -> TlsSocket:
    """Shake hands over a connected socket, which has a timeout.

    Raises:
        OpsqError: as `tls_failure`, and `client_context`.
    """
    try:
        return TlsSocket(client_context(address).wrap_socket(peer, server_hostname=address.host), address)
    except OSError as error:
        raise tls_failure(address, error) from error


def tls_failure(address: TlsAddress, error: Exception) -> OpsqError:
    """What an error of the handshake, or of a connection soon after it, means."""
    where = show_address(address)
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotPermitted(
            f"The certificate of the daemon at {where} is not accepted: {error.verify_message.rstrip('.')}.",
            hint="Nothing was sent. Give its CA with --tls-ca-file, and connect to a host name that it was issued for.",
        )
    reason = getattr(error, "reason", None) or str(error)
    if "ALERT" in reason and any(word in reason for word in _OUR_CERTIFICATE):
        return NotPermitted(
            f"The daemon at {where} does not accept this client's certificate ({reason.lower().replace('_', ' ')}).",
            hint="It requires one from its own CA: give --tls-client-cert-file and --tls-client-key-file.",
        )
    if any(word in reason for word in _NO_TLS):
        return ProtocolError(
            f"What listens at {where} does not speak TLS.",
            hint="Leave out tls://, or start the daemon with a certificate.",
        )
    return Unreachable(f"No TLS connection to {where}: {getattr(error, 'strerror', '') or reason}.")


class TlsSocket:
    """A TLS connection with the methods of a socket that clients use; one thread may send while another receives."""

    family = socket.AF_INET

    def __init__(self, peer: ssl.SSLSocket, address: TlsAddress) -> None:
        self._peer = peer
        self._address = address
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor; -1 when closed. All that was received is handed out before it says that nothing is there."""
        return self._peer.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        """As of a socket."""
        self._peer.setblocking(is_blocking)

    def recv(self, size: int) -> bytes:
        """Everything that is there, and at least `size` bytes of it; empty at the end.

        Raises:
            BlockingIOError: nothing is there.
            OpsqError: the daemon has ended the connection because of a certificate.
            OSError: the connection has ended.
        """
        pieces: list[bytes] = []
        try:
            with self._lock:
                while size > 0 or self._peer.pending():
                    piece = self._peer.recv(max(size, 1 << 14))
                    if not piece:
                        break
                    pieces.append(piece)
                    size -= len(piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not pieces:
                raise BlockingIOError from error
        except ssl.SSLError as error:
            if not pieces:
                raise tls_failure(self._address, error) from error
        return b"".join(pieces)

    def send(self, data: bytes | memoryview) -> int:
        """As of a socket that does not block. Raises as `recv`."""
        try:
            with self._lock:
                return self._peer.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def shutdown(self, how: int) -> None:
        """As of a socket."""
        self._peer.shutdown(how)

    def close(self) -> None:
        """As of a socket."""
        self._peer.close()
