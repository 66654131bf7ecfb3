"""Runs queries of Structured Streaming to the end of what is there.

It must not say what they read or write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from spark.jvm import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter

LATE_WORKER = "connect back"
"""Of what Spark says when a worker of Python took more than 10 s to start, which no setting changes: a busy machine."""
LATE_WORKERS_LIMIT = 5


def run_to_end(writer: DataStreamWriter) -> None:
    """Take all that is there now, in micro-batches; the writer has a checkpoint, from which a restart goes on."""
    for attempt in range(1, LATE_WORKERS_LIMIT + 1):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(DEADLINE_S)
        except StreamingQueryException as error:
            if LATE_WORKER not in str(error) or attempt == LATE_WORKERS_LIMIT:
                raise
        else:
            assert not query.isActive
            return
