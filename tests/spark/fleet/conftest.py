"""Submissions of rows for tests of the fleet, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import opsq
from opsq.settings import Settings
from opsq.spark.formats.schemas import arrow_schema
from opsq.spark.source.batch_writer import plan_write
from opsq.spark.source.commit import submit_parts, write_part
from opsq.spark.source.source_options import parse_write

SCHEMA = t.StructType([t.StructField("n", t.LongType()), t.StructField("text", t.StringType())])


@pytest.fixture
def submit_table(daemon: Settings, queue: opsq.Queue) -> Callable[..., opsq.Submission]:
    """Submits rows as the writer of the data source does, without Spark."""

    def submit(rows: list[dict[str, Any]], **options: Any) -> opsq.Submission:
        before = {state.submission_id for state in queue.submissions()}
        given = parse_write(
            {"stateDir": str(daemon.state_dir), **{name: str(value) for name, value in options.items()}}
        )
        written = plan_write(given, SCHEMA, overwrite=False)
        schema = arrow_schema(SCHEMA)
        part = write_part(written, schema, pa.Table.from_pylist(rows, schema).to_batches(), 0, 0)
        submit_parts(written, [part], schema)
        [new] = [state.submission_id for state in queue.submissions() if state.submission_id not in before]
        return queue.submission(new)

    return submit
