"""A small client of Opsqueue that behaves as its client 0.30.3 does, for what that cannot be made to show.

It must not use anything of opsq.
"""

from __future__ import annotations

import contextlib
from typing import Any

import cbor2
import httpx
from websockets.sync.client import connect

DEADLINE_S = 180


class Producer:
    """Calls over HTTP; as the real one it does not look at the status."""

    def __init__(self, address: str) -> None:
        self.client = httpx.Client(base_url=f"http://{address}/producer", timeout=DEADLINE_S, trust_env=False)

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        return self.client.get(path).json()

    def insert(self, contents: Any, *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """Hand over a submission; its id."""
        body = {"chunk_contents": contents, "metadata": None, "strategic_metadata": {}, "chunk_size": None} | fields
        return self.client.post("/submissions", json=body, headers=headers).json()

    def stored(self, prefix: str, count: int, **fields: Any) -> Any:
        """Hand over chunks that are elsewhere."""
        return self.insert({"SeeObjectStorage": {"prefix": prefix, "count": count}}, **fields)

    def status(self, submission_id: int) -> Any:
        """The state of a submission."""
        return self.get(f"/submissions/{submission_id}")


class Consumer:
    """One WebSocket."""

    def __init__(self, address: str) -> None:
        url = f"ws://{address}/consumer"
        self._open = contextlib.ExitStack()
        self.socket = self._open.enter_context(connect(url, compression=None, proxy=None, open_timeout=DEADLINE_S))
        self.init = self.receive()["Init"]
        self.nonce = -1

    def receive(self) -> Any:
        """The next message."""
        return cbor2.loads(self.socket.recv(DEADLINE_S))

    def send(self, contents: Any) -> int:
        """Send a request; its nonce."""
        self.nonce += 1
        self.socket.send(cbor2.dumps({"nonce": self.nonce, "contents": contents}))
        return self.nonce

    def ask(self, count: int = 1, strategy: Any = "Oldest") -> int:
        """Ask for chunks, without waiting for them."""
        return self.send({"WantToReserveChunks": {"max": count, "strategy": strategy}})

    def answer(self, nonce: int) -> list[Any]:
        """The chunks with which a reserve was answered, each with its submission."""
        sync = self.receive()["Sync"]
        assert sync["nonce"] == nonce
        found: list[Any] = sync["contents"]["ChunksReserved"]["Ok"]
        return found

    def reserve(self, count: int = 1, strategy: Any = "Oldest") -> list[Any]:
        """Chunks, each with its submission."""
        return self.answer(self.ask(count, strategy))

    def complete(self, chunk: Any, output: bytes | None = None) -> None:
        """Report that a chunk is done."""
        content = None if output is None else list(output)
        self.send({"CompleteChunk": {"id": _name(chunk), "output_content": content}})

    def fail(self, chunk: Any, failure: str) -> None:
        """Report a failed attempt."""
        self.send({"FailChunk": {"id": _name(chunk), "failure": failure}})

    def close(self) -> None:
        """Go away."""
        self._open.close()


def _name(chunk: Any) -> dict[str, int]:
    return {key: chunk[key] for key in ("submission_id", "chunk_index")}
