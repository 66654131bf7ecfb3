"""The daemon's own memory (RssAnon) at 10⁷ chunks against 10⁴, and when all of them have failed once.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Benchmark, Context, Row, at_most, main
from ours import loads
from ours.client import Client, connect
from ours.daemon import Daemon, settled_bytes

_SUBMISSION_CHUNKS = 1000
_FEW_CHUNKS = 10_000
_PER_CALL = 1000
_RETRY_IN_S = 86_400.0
_MIB = 1 << 20


def measure(context: Context) -> Iterator[Row]:
    """Three looks: few chunks, many, many that failed. Each daemon first works a little, so that its code is warm."""
    many_chunks = context.size(10_000_000, 1_000_000)
    with Daemon(context.folder("few")) as daemon, connect(daemon) as client:
        context.say(f"{_FEW_CHUNKS} chunks")
        _warm(client)
        client.submit(_FEW_CHUNKS // _SUBMISSION_CHUNKS, _SUBMISSION_CHUNKS)
        few_bytes = settled_bytes(daemon)
    with Daemon(context.folder("many")) as daemon, connect(daemon) as client:
        context.say(f"{many_chunks} chunks")
        _warm(client)
        client.submit(many_chunks // _SUBMISSION_CHUNKS, _SUBMISSION_CHUNKS)
        many_bytes = settled_bytes(daemon)
        note = f"{few_bytes / _MIB:.1f} MiB at {_FEW_CHUNKS} chunks"
        what = f"RssAnon at {many_chunks:.0e} chunks, above {_FEW_CHUNKS:.0e}"
        yield Row(what, "bytes", many_bytes - few_bytes, at_most(64 * _MIB, "bytes"), note=note)
        context.say("each fails once")
        loads.fail(client, many_chunks, per_call=_PER_CALL, delay_s=_RETRY_IN_S)
        failed_bytes = settled_bytes(daemon)
        what = f"RssAnon when all {many_chunks:.0e} failed once, above {_FEW_CHUNKS:.0e}"
        yield Row(what, "bytes", failed_bytes - few_bytes, at_most(96 * _MIB, "bytes"), note=note)


def _warm(client: Client) -> None:
    client.submit(1, 100 * _PER_CALL)
    loads.complete(client, 100 * _PER_CALL, strategy="OldestFirst", per_call=_PER_CALL, in_flight=4)


BENCHMARK = Benchmark("memory", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)
