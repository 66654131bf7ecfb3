"""HTTP as uvicorn and httptools read it, with a bound on the head of a request, and refusals as problem documents.

It must not know what is served.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from opsq.gateway.problems import problem

HEAD_LIMIT_BYTES = 1 << 16
"""Of the request line and all headers; the parser itself would keep any number of bytes until a header ends."""
_END = b"\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """One connection. Its requests have heads of at most `HEAD_LIMIT_BYTES`."""

    _head_bytes = 0
    _tail = b""
    """The end of what has come of a head: the empty line after it may be split."""
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self._is_in_head:
            end = (self._tail + data).find(_END)
            self._head_bytes += len(data) if end < 0 else end - len(self._tail)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(431, f"The head of a request may have {HEAD_LIMIT_BYTES} bytes.")
                return
            self._tail = (self._tail + data)[-len(_END) + 1 :]
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head has ended, and its request begins."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has ended; the next begins with a head."""
        self._is_in_head, self._head_bytes, self._tail = True, 0, b""
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        refusal = problem(status, "http", detail, headers={"Connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in refusal.raw_headers)
        self.transport.write(STATUS_LINE[status] + headers + b"\r\n" + bytes(refusal.body))
        self.transport.close()
