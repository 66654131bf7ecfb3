"""Data sets in and out for `opsq spark`: the options that name them, and what Spark is asked to do with them.

It must not run jobs nor speak to anybody. PySpark is imported only inside.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_remote
from opsq.cli.options import values
from opsq.cli.options.option import COUNT, Whole, option, option_set
from opsq.client.core.address import read_token
from opsq.errors import Bug, Conflict, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.producer import Producer
    from opsq.client.sync.submission import Submission

ChunkFormat = Literal["jsonl", "csv", "text", "parquet", "arrow"]
_BY_SUFFIX = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
    ".txt": "text",
    ".log": "text",
}
_FILE_FORMATS = frozenset({*_BY_SUFFIX.values(), "avro", "xml", "binaryfile"})


@option_set
class Reading(NamedTuple):
    """How the inputs are read; each field is an option."""

    format: str | None = option(
        "--format NAME", "What Spark reads the inputs as: parquet, csv, json, …; else as their names end."
    )
    reader_option: list[str] = option("--option KEY=VALUE...", "An option of that reader, such as header=true.")
    schema: str | None = option("--schema DDL", "The columns of the inputs, such as 'id BIGINT, text STRING'.")
    select: list[str] = option("--select EXPR...", "Only this column or SQL expression; any number of times.")
    where: str | None = option("--where CONDITION", "Only rows for which this SQL condition holds.")

    def paths(self, inputs: list[str]) -> list[str]:
        """Those inputs that are surely paths or URLs: what another --format reads may have names of its own."""
        return inputs if self.format is None or self.format.lower() in _FILE_FORMATS else []

    def frame(self, spark: SparkSession, inputs: list[str]) -> DataFrame:
        """The inputs as a DataFrame."""
        reader = spark.read.format(self.format or _format_of(inputs[0]))
        for text in self.reader_option:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise UsageError(f"--option {text}: write KEY=VALUE.", hint="For example --option header=true.")
            reader = reader.option(key, value)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        frame = reader.load(inputs if len(inputs) > 1 else inputs[0])
        if self.where is not None:
            frame = frame.where(self.where)
        return frame.selectExpr(*self.select) if self.select else frame


@option_set
class Chunking(NamedTuple):
    """How rows become chunks of a submission; each field is an option."""

    rows_per_chunk: int | None = option(
        "-n, --rows-per-chunk N", "Rows per chunk; the last chunk of a partition has fewer.", COUNT
    )
    bytes_per_chunk: int | None = option(
        "-b, --bytes-per-chunk SIZE", "Approximate bytes per chunk; 1M by default.", values.size
    )
    chunk_format: ChunkFormat = option(
        "--chunk-format jsonl|csv|text|parquet|arrow", "What a program reads on its stdin.", default="jsonl"
    )
    metadata: list[str] = option("-m, --metadata KEY=VALUE...", "Strategic metadata; any number of times.")
    priority: int | None = option("--priority N", "Higher comes first under CustomPriority; 0 by default.", Whole())
    max_attempts: int | None = option("--max-attempts N", "Failures until a chunk is dead.", COUNT)
    on_dead: Literal["fail", "keep"] = option(
        "--on-dead fail|keep", "A dead chunk fails the submission, or the rest goes on.", default="fail"
    )
    idempotency_key: str | None = option(
        "--idempotency-key KEY", "The same rows under this key are one submission, as long as that is there."
    )

    def submit(self, frame: DataFrame, reach: dict[str, str], producer: Producer) -> Submission:
        """Hand over the rows as one submission; `is_new` tells whether this made it."""
        key = self.idempotency_key or f"spark-{uuid.uuid4().hex}"
        before = producer.find(key)
        frame.write.format("opsq").mode("append").options(**reach, **self._options(key)).save()
        made = producer.find(key)
        if made is None:
            raise Bug(f"Spark has written, and the daemon knows no submission under the key {key}.")
        made.is_new = before is None
        return made

    def _options(self, key: str) -> dict[str, Any]:
        import json

        values.exclude(rows_per_chunk=self.rows_per_chunk, bytes_per_chunk=self.bytes_per_chunk)
        given = {
            "rowsPerChunk": self.rows_per_chunk,
            "bytesPerChunk": self.bytes_per_chunk,
            "chunkFormat": self.chunk_format,
            "metadata": json.dumps(values.metadata(self.metadata)),
            "priority": self.priority,
            "maxAttempts": self.max_attempts,
            "onDead": self.on_dead,
            "idempotencyKey": key,
        }
        return {name: value for name, value in given.items() if value is not None}


@option_set
class Writing(NamedTuple):
    """How results are written; each field is an option."""

    output: str | None = option(
        "-o, --output DIR", "The folder to write to, in Spark's way: a file for each partition."
    )
    output_format: str | None = option(
        "--output-format NAME", "parquet, csv, json, …; else as the name of --output ends, else parquet."
    )
    output_option: list[str] = option("--output-option KEY=VALUE...", "An option of that writer, such as header=true.")
    overwrite: bool = option("--overwrite", "Replace what lies there already.")
    files: int | None = option("--files N", "Write at most this many files; they keep the order of the rows.", COUNT)
    result_format: Literal["parquet", "arrow", "jsonl", "csv", "text", "binary"] | None = option(
        "--result-format parquet|arrow|jsonl|csv|text|binary",
        "What results are read as; else what they look like, else as the chunks.",
    )
    result_schema: str | None = option(
        "--result-schema DDL|same",
        "The columns of results; same: those of the chunks; else the first results and the chunks tell.",
    )
    skip_dead: bool = option("--skip-dead", "Leave out the chunks that have no result.")

    def place(self, *, is_there: bool = False) -> str:
        """Where to, checked as far as it can be before anything is done; not much if it `is_there`, on a server of Spark Connect.

        Raises:
            UsageError: nothing says where.
            Conflict: something is there already.
        """
        if not self.output:
            raise UsageError("Nothing says where the results go.", hint="Give --output DIR.")
        if not (self.overwrite or is_there) and "://" not in self.output and os.path.exists(self.output):
            raise Conflict(f"{self.output} is there already.", hint="Give another --output, or --overwrite.")
        return self.output

    def check(self, spark: SparkSession) -> None:
        """See to it that --result-schema can be understood, before anything is submitted.

        Raises:
            UsageError: it cannot.
        """
        self._schema(spark)

    def _schema(self, spark: SparkSession) -> str | None:
        """--result-schema as the data source takes it: `same`, or JSON; of SQL's way the session knows what it means."""
        given = (self.result_schema or "").strip()
        if not given or given.lower() == "same":
            return given or None
        from opsq.spark.formats.schemas import read_schema

        if given.startswith("{"):
            read_schema(given)
            return given
        from pyspark.errors import PySparkException

        try:
            return spark.createDataFrame([], given).schema.json()
        except PySparkException as error:
            told = str(error).strip().splitlines()
            raise UsageError(
                f"--result-schema {self.result_schema}: Spark does not understand it: {told[0] if told else type(error).__name__}",
                hint="Write columns as in SQL, such as 'id BIGINT, text STRING', or `same`.",
            ) from error

    def write(self, spark: SparkSession, submission_id: int, reach: dict[str, str]) -> int:
        """Write the results, in the order of the chunks, and return how many rows they are."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        place = self.output or ""  # `place` has looked
        given = {
            "resultFormat": self.result_format,
            "resultSchema": self._schema(spark),
            "deadChunks": "skip" if self.skip_dead else None,
        }
        options = {name: value for name, value in given.items() if value is not None}
        frame = spark.read.format("opsq").options(**reach, **options).load(str(submission_id))
        observation = Observation()
        frame = frame.observe(observation, f.count(f.lit(1)).alias("rows"))
        if self.files is not None:
            frame = frame.coalesce(self.files)
        writer = frame.write.format(self.output_format or _format_of(place)).mode(
            "overwrite" if self.overwrite else "error"
        )
        for text in self.output_option:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise UsageError(
                    f"--output-option {text}: write KEY=VALUE.", hint="For example --output-option header=true."
                )
            writer = writer.option(key, value)
        is_new = not os.path.lexists(place)
        try:
            writer.save(place)
        except BaseException:
            if is_new:
                with suppress(
                    OSError
                ):  # what Spark began is in the way of the next try; what is in it is for people to judge
                    os.rmdir(place)
            raise
        return int(observation.get["rows"])


def daemon_options(caller: Caller) -> dict[str, str]:
    """The daemon of a command line, as options of the data source. A token is redacted by Spark wherever it shows options."""
    found = {"address": caller.target}
    if is_remote(caller.settings):
        found["token"] = read_token(caller.settings)
    return found


def _format_of(path: str) -> str:
    """What Spark reads or writes a path as, by the end of its name; Parquet if that tells nothing."""
    name = path.rstrip("/").removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
    return _BY_SUFFIX.get(os.path.splitext(name)[1].lower(), "parquet")
