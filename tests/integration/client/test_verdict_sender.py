"""Verdicts of many threads: what is sent in which order, and what must be on the disk before."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import opsq
from opsq.client.core.held_block import HeldBlock, Result
from opsq.client.embedded import EmbeddedWire
from opsq.client.sync.verdict_sender import VerdictSender
from opsq.content.result_objects import ResultWriter, Stored
from opsq.wire.messages import RESULT_INLINE_BYTES, Complete, CompleteAndReserve, Request

CHUNKS = 240
THREADS = 6


class SlowDisk:
    """Takes its time to sync, and knows what is synced; and which results were named to the daemon before they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._guard = threading.Lock()
        self._appended: list[Stored] = []
        self.synced: set[tuple[str, int, int]] = set()
        self.early: list[tuple[str, int, int]] = []
        append, sync, send = ResultWriter.append, ResultWriter.sync, EmbeddedWire.send
        store = VerdictSender._store_result

        def store_and_be_put_off(sender: VerdictSender, block: HeldBlock, result: Result) -> Result:
            place = store(sender, block, result)
            time.sleep(0.003)  # here another thread may send
            return place

        def append_and_note(writer: ResultWriter, result: bytes) -> Stored:
            stored = append(writer, result)
            with self._guard:
                self._appended.append(stored)
            return stored

        def sync_slowly(writer: ResultWriter) -> None:
            with self._guard:
                found, self._appended = self._appended, []
            time.sleep(0.005)
            sync(writer)
            self.synced.update(map(tuple, found))

        def send_and_look(wire: EmbeddedWire, requests: Sequence[Request]) -> None:
            for request in requests:
                if isinstance(request, Complete | CompleteAndReserve):
                    for completion in request.completions:
                        results = msgspec.msgpack.decode(completion.results) or []
                        named = {tuple(result) for result in results if isinstance(result, list)}
                        self.early += sorted(named - self.synced)
            send(wire, requests)

        monkeypatch.setattr(ResultWriter, "append", append_and_note)
        monkeypatch.setattr(ResultWriter, "sync", sync_slowly)
        monkeypatch.setattr(EmbeddedWire, "send", send_and_look)
        monkeypatch.setattr(VerdictSender, "_store_result", store_and_be_put_off)


def test_no_result_is_named_before_it_is_synced_whichever_thread_sends(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large results mixed: while one thread syncs, another must not send what waits for that."""
    disk = SlowDisk(monkeypatch)
    errors: list[Exception] = []
    parts = [b"%d" % number for number in range(CHUNKS)]
    with opsq.Queue.open(runtime_dir) as queue:
        submission = queue.submit(parts)
        with queue.consumer("OldestFirst", batch=CHUNKS) as consumer:
            loop = consumer.chunks(overlapping=True, until_idle=True)
            chunks = [next(loop) for _ in range(CHUNKS)]

            def work(first: int) -> None:
                try:
                    for chunk in chunks[first::THREADS]:
                        size = RESULT_INLINE_BYTES + 1 if chunk.index % 2 else 1
                        chunk.complete(chunk.data * size)
                        if chunk.index % 3 == 0:
                            consumer.flush()
                except Exception as error:  # noqa: BLE001  # whatever it is
                    errors.append(error)

            threads = [threading.Thread(target=work, args=(first,)) for first in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert list(loop) == []
        assert errors == []
        assert disk.synced
        assert disk.early == []
        expected = [part * (RESULT_INLINE_BYTES + 1 if index % 2 else 1) for index, part in enumerate(parts)]
        assert list(submission.results()) == expected
