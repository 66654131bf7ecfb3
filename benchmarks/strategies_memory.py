"""The daemon's own memory (RssAnon) with 10⁵ open submissions of three metadata keys and fifty strategies in use.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main
from opsq.wire.messages import NewSubmission, Submit, Submitted
from ours import loads
from ours.client import connect
from ours.daemon import Daemon, settled_bytes
from ours.named import fifty, metadata_of, priority_of

_CHUNKS = 1000
_AT_ONCE = 1000
_USED_CHUNKS = 5000
"""How many each strategy hands out, ten per call: a fair one has then served every tenant, a deck has shown hundreds of
submissions."""
_MIB = 1 << 20


def measure(context: Context) -> Iterator[Row]:
    """One connection a strategy; all stay, and go on to wait with their fronts warm."""
    count = context.size(100_000, 10_000)
    with contextlib.ExitStack() as opened:
        # Nobody sends heartbeats here: with fifty strategies to come, the first would be cut off before the last.
        daemon = opened.enter_context(Daemon(context.folder("opsq"), heartbeat_s="600"))
        producer = opened.enter_context(connect(daemon))
        context.say(f"{count} submissions")
        for start in range(0, count, _AT_ONCE):
            new = []
            for number in range(start, start + _AT_ONCE):
                metadata = metadata_of(number)
                key = number.to_bytes(16, "big")
                new.append(NewSubmission(key, _CHUNKS, metadata=metadata, priority=priority_of(metadata)))
            producer.call(Submit(producer.next_id(), new), Submitted)
        filled_bytes = settled_bytes(daemon)
        for number, strategy in enumerate(fifty()):
            if number % 10 == 0:
                context.say(f"strategy {number}")
            consumer = opened.enter_context(connect(daemon))
            loads.complete(consumer, context.size(_USED_CHUNKS, 500), strategy=strategy, per_call=10, in_flight=4)
        used_bytes = settled_bytes(daemon)
    what = f"RssAnon with {count:.0e} open submissions, 3 keys each, 50 strategies in use"
    note = f"{filled_bytes / _MIB:.1f} MiB before the first reserve"
    yield Row(what, "bytes", used_bytes, at_most(256 * _MIB, "bytes"), note=note)


BENCHMARK = Benchmark("strategies_memory", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
