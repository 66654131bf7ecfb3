"""The verb spark submit: the rows of a data set become chunks of a submission."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.spark.data_sets import RULES, Chunking, Reading
from opsq.cli.spark.fleet_work import INPUTS, check_places, spark_producer, submit_rows
from opsq.cli.spark.job import Session, opened
from opsq.cli.spark.spark_documents import SparkSubmitDocument
from opsq.content.manifest import decode as decode_content
from opsq.options.option import options
from opsq.options.submission_options import Rules
from opsq.wire.messages import Describe, Described


def submit(
    caller: Caller,
    inputs: list[str] = INPUTS,
    reading: Reading = options(Reading),
    chunking: Chunking = options(Chunking),
    rules: Rules = RULES,
    session: Session = options(Session),
) -> None:
    """Submit the rows of a data set as chunks; prints only the id of the submission."""
    rules.as_fields()  # refused before Spark starts
    check_places(session, reading.paths(inputs))
    with spark_producer(caller) as producer, opened(caller, session) as jobs:
        submission = submit_rows(caller, jobs, inputs, reading, chunking, rules, producer)
        described = producer.link.call(Describe(producer.link.next_id(), [submission.id]), Described).submissions[0]
    content = decode_content(described.content)
    caller.document(
        SparkSubmitDocument(str(submission.id), submission.is_new, content.chunks_count, content.total_bytes)
    )
    caller.lines([str(submission.id)])
