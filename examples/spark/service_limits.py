"""Calls a service that refuses more than five calls at a time and fifty a second, and is never refused.

Usage: service_limits.py URL INPUT.parquet OUTPUT.parquet

URL gets the value of the column `place` and answers with a line of text; strict_service.py is such a service.
"""

import os
import sys

import httpx

import opsq
import opsq.spark

STATE_DIR = os.environ.get("OPSQ_STATE_DIR", os.path.expanduser("~/.local/state/opsq"))
url, source, target = sys.argv[1:4]
TIMEOUT_S = 10

# %% The daemon keeps the limit, for all executors together. A burst of two lets it make up for a chunk that was handed
# out late. Calls may bunch up on their way to the service, so rate and burst together stay below fifty.
with opsq.connect(state_dir=STATE_DIR) as queue:
    queue.limit("service", "geo", concurrency=5, rate_per_s=46, burst=2)

# %% A chunk is a call: limits count chunks.
spark = opsq.spark.build_session("local[*]")
submission = opsq.spark.write(
    spark.read.parquet(source),
    rows_per_chunk=1,
    metadata={"service": "geo"},
    state_dir=STATE_DIR,
)


# %% Each task awaits as many calls as it gets chunks; one client serves them all. An exception (a timeout, a refusal)
# fails its chunk, which is retried after a pause.
class Ask:
    """A coroutine function with a client, made where it is awaited."""

    client = None

    async def __call__(self, table):
        """Add the answer of the service to the row."""
        self.client = self.client or httpx.AsyncClient(timeout=TIMEOUT_S)
        answer = await self.client.get(url, params={"place": table["place"][0].as_py()})
        answer.raise_for_status()
        return table.append_column("answer", [[answer.text]])


# %% With a lease, calls of an executor that was killed are still counted while the service may work on them.
opsq.spark.consume(
    spark,
    function=Ask(),
    concurrency=20,
    timeout=TIMEOUT_S,
    lease=TIMEOUT_S + 1,
    submission=submission,
    state_dir=STATE_DIR,
)

# %%
opsq.spark.results(spark, submission, state_dir=STATE_DIR).write.parquet(target)
