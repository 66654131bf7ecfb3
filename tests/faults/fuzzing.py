"""A mutator that knows the grammar of frames, and the connections that send what it makes.

It reads the message types and knows no field by name, but for what makes a message meaningful. A *talk* is one
connection: perhaps a hello, requests that are left in flight, then a frame that is broken. Each has a seed of its own.
It must not know what a request means: it looks at whether and how it is answered, and the test at what is left.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections import Counter
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import inspect

from daemons import Client
from opsq.errors import BY_CODE, ProtocolError
from opsq.wire import messages as m
from opsq.wire.frames import request_reader
from wire_values import plain, variants

FRAME_LIMIT_BYTES = 64 << 10
LONG_BYTES, LONG_SHARE = 4 << 10, 0.02
"""Longer frames are rare: they would be most of the bytes, and few of the cases."""
LATE = (m.Check, m.Backup, m.Vacuum)
LATE_SHARE = 0.01
"""Of the requests: those that work on the whole file, and are answered from another thread."""
PLAIN_SHARE = 0.6
"""Of the others: those that begin as what is served."""
KINDS = [kind for kind in get_args(m.Request) if kind not in {m.Hello, m.Stop, *LATE}]
ENDS = frozenset({"protocol", "version_mismatch", "not_permitted", "timed_out", "limit_reached"})
"""Codes with which a connection may be closed."""
NASTY = (
    *(kind + b"\xff" * 4 for kind in (b"\xdb", b"\xdd", b"\xdf")),
    *(b"\xc1", b"\xc0", b"\x80", b"\x90", b"\xa0", b"\xc4\x00", b"\xd9\x01\xff"),
    *(b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8" + b"\0" * 6, b"\x91" * 2000),
)
"""Lengths of 4 GiB, what is no type, empty things, text that is not UTF-8, ends of numbers, and a deep nest."""


class Live(NamedTuple):
    """What is really there, so that requests hit it."""

    submission_ids: list[int]
    held: list[m.HeldChunks]
    folder: str


class Grammar:
    """Makes requests, as lists of the values that MessagePack carries, and breaks them."""

    def __init__(self, live: Live, seed: str) -> None:
        self.rng = random.Random(seed)
        self._ids = 100
        self._live = live
        known = {
            "when": lambda: "@daily",
            "request_key": lambda: self.rng.randbytes(16),
            "strategy": lambda: self.rng.choice(["OldestFirst", "Random", "NewestFirst", "Fair(key, Random)"]),
            "submission_id": lambda: self.rng.choice(live.submission_ids),
            "HeldChunks": lambda: msgspec.msgpack.decode(msgspec.msgpack.encode(self.rng.choice(live.held))),
        }
        self._pools: dict[type[m.Message], list[list[Any]]] = {}
        self._plain: dict[type[m.Message], list[list[Any]]] = {}
        for kind in KINDS:
            found = [one.content for one in variants(kind, known)]
            self._plain[kind] = [plain(inspect.type_info(kind), known) for _ in range(4)]
            self._pools[kind] = [msgspec.msgpack.decode(one) for one in found if len(one) < FRAME_LIMIT_BYTES // 2]

    def begin(self, seed: str) -> None:
        """Draw by this seed from now on."""
        self.rng.seed(seed)

    def request(self) -> list[Any]:
        """A request, each of whose fields is at, within or beyond its bounds."""
        rng = self.rng
        if rng.random() < LATE_SHARE:
            kind = rng.choice(LATE)
            path = [f"{self._live.folder}/{rng.getrandbits(64):x}"] if kind is m.Backup else []
            return [kind.__name__, self._id(), *path]
        kind = rng.choice(KINDS)
        pool = self._pools[kind] or self._plain[kind]
        request = list(rng.choice(self._plain[kind] if rng.random() < PLAIN_SHARE else pool))
        for _ in range(rng.choice((0, 0, 1, 3))):
            at = rng.randrange(1, max(len(request), 2))
            request[at : at + 1] = rng.choice(pool)[at : at + 1]
        if "id" in kind.__struct_fields__:
            request[1] = self._id()
        if rng.random() < 0.1:
            request = self._misshapen(request)
        return request

    def _id(self) -> int:
        self._ids += 1
        return self._ids

    def _misshapen(self, request: list[Any]) -> list[Any]:
        """Another name, too few fields or too many, or a value of another type."""
        rng, request = self.rng, list(request)
        way = rng.choice(("renamed", "cut", "longer", "of another type", "shuffled"))
        if way == "renamed":
            request[0] = rng.choice([*KINDS, m.Hello, m.Alive, m.Reserved]).__name__
        elif way == "cut":
            del request[rng.randrange(1, len(request) + 1) :]
        elif way == "longer":
            request.append(rng.choice([None, 0, "x", [], {}, [[[]]], {"a": {"b": 1}}]))
        elif way == "of another type":
            at = rng.randrange(len(request))
            request[at] = rng.choice([None, True, -1, 1 << 63, 1.5, "", b"", [], {}, [None] * 9])
        else:
            rng.shuffle(request)
        return request

    def frame(self, *requests: list[Any]) -> bytes:
        """Requests as one frame, of no more than the limit; a Heartbeat in place of what is too long too often."""
        body = msgspec.msgpack.encode(list(requests))
        if len(body) > FRAME_LIMIT_BYTES or (len(body) > LONG_BYTES and self.rng.random() > LONG_SHARE):
            body = msgspec.msgpack.encode([["Heartbeat", self._id()]])
        return framed(body)

    def broken(self, frame: bytes) -> bytes:
        """The same with some bytes changed: of its body, or of its length."""
        rng, body = self.rng, bytearray(frame[4:])
        if rng.random() < 0.1:
            length = rng.choice((0, 1, len(body) - 1, len(body) + 1, FRAME_LIMIT_BYTES + 1, (1 << 32) - 1))
            return max(length, 0).to_bytes(4, "big") + bytes(body)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(body) + 1)
            end = min(at + rng.choice((1, 1, 4, 30)), len(body))
            way = rng.choice(("flipped", "nasty", "cut", "doubled", "random"))
            if way == "flipped":
                body[at:end] = bytes(byte ^ 1 << rng.randrange(8) for byte in body[at:end])
            elif way == "nasty":
                body[at:end] = rng.choice(NASTY)
            elif way == "cut":
                del body[at:end]
            elif way == "doubled":
                body[at:at] = body[at:end] * rng.choice((1, 2, 40))
            else:
                body[at:end] = rng.randbytes(end - at)
        return framed(bytes(body))


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Wrong(AssertionError):
    """The daemon has not done what it must, whatever it was sent."""


class Talks:
    """Talks over one door of a daemon.

    Args:
        token: for the hello; empty over the Unix socket.
    """

    def __init__(self, address: str, token: str, live: Live, seed: str) -> None:
        self._address, self._token, self._seed = address, token, seed
        self._grammar = Grammar(live, seed)
        self.tally: Counter[str] = Counter()

    def talk(self, number: int) -> None:
        """Have one talk, and look at all that is answered.

        Raises:
            Wrong: an answer is none, or tells of a bug; or there is none.
        """
        grammar, sent = self._grammar, bytearray()
        grammar.begin(f"{self._seed}/{number}")
        rng = grammar.rng
        is_greeted = rng.random() < 0.9
        frames = [
            grammar.frame(*(grammar.request() for _ in range(rng.choice((1, 1, 1, 3)))))
            for _ in range(rng.randint(1, 12))
        ]
        if not is_greeted or rng.random() < 0.7:
            frames[-1] = grammar.broken(frames[-1] if is_greeted or rng.random() < 0.5 else self._hello())
        self.tally["frames"] += len(frames)
        self.tally["talks"] += 1
        with contextlib.closing(Client(self._address)) as client:
            if is_greeted:
                client.socket.sendall(self._hello())
                if not isinstance(client.receive(), m.Welcome):
                    raise Wrong("a hello is not welcome")
            sent += b"".join(frames)
            with contextlib.suppress(ConnectionError):  # it was closed after one of them
                client.socket.sendall(sent)
            if rng.random() < 0.2:  # gone, with all in flight
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.tally["gone"] += 1
                return
            try:
                self._listen(client, fate(bytes(sent)) if is_greeted else "unknown")
            except Exception as error:
                shown = " ".join(one[:2000].hex() for one in frames)
                place = f"talk {self._seed}/{number} at {self._address}"
                raise Wrong(f"{type(error).__name__}: {error}\n{place}\n{shown}") from error

    def _hello(self) -> bytes:
        return framed(msgspec.msgpack.encode([m.Hello(1, m.VERSION, "fuzz", self._token)]))

    def _listen(self, client: Client, expected: str) -> None:
        with contextlib.suppress(OSError):
            if expected == "goes on":
                client.send(m.Heartbeat(1))
            else:
                client.socket.shutdown(socket.SHUT_WR)
        last = None
        while (reply := client.receive()) is not None:
            last = reply
            self.tally[type(reply).__name__] += 1
            if isinstance(reply, m.ErrorReply):
                self.tally[reply.code] += 1
                if reply.code not in BY_CODE or reply.code == "bug":
                    raise Wrong(str(reply))
            elif reply == m.Alive(1) and expected == "goes on":
                return
        self.tally[expected] += 1
        if expected == "goes on" and not (isinstance(last, m.ErrorReply) and last.code in ENDS):
            raise Wrong(f"closed without a reason; the last reply: {last}")
        if expected == "ends" and not (isinstance(last, m.ErrorReply) and last.code == "protocol"):
            raise Wrong(f"closed without the reason; the last reply: {last}")


def fate(sent: bytes) -> str:
    """What becomes of a greeted connection that has sent this: it goes on, ends, or waits for more."""
    reader = request_reader(FRAME_LIMIT_BYTES)
    try:
        found = list(reader.feed(sent))
    except ProtocolError:
        return "ends"
    if any(isinstance(one, m.Hello) for one in found):
        return "ends"
    return "waits" if len(reader._buffer) else "goes on"


def sources(address: str, token: str, live: Live, seed: str, first: int, frames_count: int) -> Counter[str]:
    """Have talks until so many frames were sent; what they came to. For a process of its own."""
    talks = Talks(address, token, live, seed)
    number = first
    while talks.tally["frames"] < frames_count:
        talks.talk(number)
        number += 1
    return talks.tally
