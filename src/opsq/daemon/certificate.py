"""Until when the certificate of a daemon is good, for people; the daemon itself does not ask.

This file must not serve anything: it shakes hands with itself, in memory.
"""

from __future__ import annotations

import contextlib
import ssl

from opsq.errors import Conflict


def good_until(server: ssl.SSLContext, cert_file: str) -> float:
    """The last second since 1970 at which clients will accept it.

    Args:
        server: the context with the certificate.
        cert_file: where it is.

    Raises:
        Conflict: no client will, now.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it vouches for itself, whatever CA has signed it
    client.load_verify_locations(cert_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (asking, answering, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise Conflict(f"No client accepts {cert_file}: {error.verify_message}.") from error
    found = asking.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(found["notAfter"]))
