"""Data sets that `opsq spark` reads and writes: the options that describe them, and the calls of Spark.

It must not run jobs nor print. PySpark is imported inside functions only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from opsq.cli.caller import Caller
from opsq.client.core.address import address_of, is_local, read_token, write_address
from opsq.errors import Conflict, UsageError
from opsq.options import values
from opsq.options.option import COUNT, option, option_set, options
from opsq.options.submission_options import Rules
from opsq.spark.source.rule_options import rules_as_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from opsq.client.sync.producer import Producer
    from opsq.client.sync.submission import Submission

RULES = options(
    Rules,
    "unique",
    "unique_until",
    "keep_s",
    idempotency_key=option(
        "--idempotency-key KEY", "The same rows under this key are one submission, as long as it exists."
    ),
)
"""What the submission of a data set is given; it is found again by its idempotency key, which excludes another."""

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
        "--format NAME", "The format of the inputs: parquet, csv, json, …; by default from their names."
    )
    reader_option: list[str] = option("--option KEY=VALUE...", "An option of that reader, such as header=true.")
    schema: str | None = option("--schema DDL", "The columns of the inputs, such as 'id BIGINT, text STRING'.")
    select: list[str] = option("--select EXPR...", "Only this column or SQL expression; repeatable.")
    where: str | None = option("--where CONDITION", "Only rows for which this SQL condition holds.")

    def paths(self, inputs: list[str]) -> list[str]:
        """The inputs that are paths or URLs: other formats may have names of their own."""
        return inputs if self.format is None or self.format.lower() in _FILE_FORMATS else []

    def frame(self, spark: SparkSession, inputs: list[str]) -> DataFrame:
        """The inputs as a DataFrame."""
        reader = spark.read.format(self.format or _format_of(inputs[0]))
        reader = reader.options(**values.pairs("--option", self.reader_option, "header=true"))
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
        "-b, --bytes-per-chunk SIZE", "Approximate bytes per chunk.", values.size, shown="1M, and 1K for each column"
    )
    chunk_format: ChunkFormat = option(
        "--chunk-format jsonl|csv|text|parquet|arrow", "What a program reads on its stdin.", default="jsonl"
    )

    def submit(self, frame: DataFrame, rules: Rules, reach: dict[str, str], producer: Producer) -> Submission:
        """Submit the rows as one submission; `is_new` says whether this made it."""
        from opsq.spark.notebook import write_named

        key = rules.idempotency_key
        is_new = key is None or producer.find(key) is None
        made = producer.submission(write_named(frame, {**reach, **self._options(), **rules_as_options(rules)}))
        made.is_new = is_new
        return made

    def _options(self) -> dict[str, str]:
        values.exclude(rows_per_chunk=self.rows_per_chunk, bytes_per_chunk=self.bytes_per_chunk)
        given = {
            "rowsPerChunk": self.rows_per_chunk,
            "bytesPerChunk": self.bytes_per_chunk,
            "chunkFormat": self.chunk_format,
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@option_set
class Writing(NamedTuple):
    """How results are written; each field is an option."""

    output: str | None = option("-o, --output DIR", "The folder to write to, with one file per partition.")
    output_format: str | None = option(
        "--output-format NAME", "parquet, csv, json, …; by default from the name of --output, else parquet."
    )
    output_option: list[str] = option("--output-option KEY=VALUE...", "An option of that writer, such as header=true.")
    overwrite: bool = option("--overwrite", "Replace an existing output.")
    files: int | None = option("--files N", "Write at most this many files; they keep the order of the rows.", COUNT)
    result_format: Literal["parquet", "arrow", "jsonl", "csv", "text", "binary"] | None = option(
        "--result-format parquet|arrow|jsonl|csv|text|binary",
        "The format of results; by default detected, else that of the chunks.",
    )
    result_schema: str | None = option(
        "--result-schema DDL|same",
        "The columns of results; same: those of the chunks; by default from the results and the chunks.",
    )
    skip_dead: bool = option("--skip-dead", "Leave out the chunks that have no result.")

    def place(self, *, is_there: bool = False) -> str:
        """The output folder, checked before anything is done, except if it `is_there`, on a Spark Connect server.

        Raises:
            UsageError: --output is missing.
            Conflict: the output exists already.
        """
        if not self.output:
            raise UsageError("No output is given for the results.", hint="Give --output DIR.")
        if not (self.overwrite or is_there) and "://" not in self.output and os.path.exists(self.output):
            raise Conflict(f"{self.output} exists already.", hint="Give another --output, or --overwrite.")
        return self.output

    def schema(self, spark: SparkSession) -> str | None:
        """--result-schema as the data source takes it: `same`, or JSON; the session parses DDL.

        Raises:
            UsageError: it cannot be parsed.
        """
        given = (self.result_schema or "").strip()
        if not given or given.lower() == "same":
            return given or None
        from opsq.spark.formats.schemas import given_schema

        try:
            return given_schema(given, spark, name="--result-schema").json()
        except UsageError as error:
            raise UsageError(error.message, hint=f"{error.hint} Or write `same`.") from error

    def write(self, spark: SparkSession, submission_id: int, reach: dict[str, str]) -> int:
        """Write the results in the order of the chunks, and return the number of rows."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        place = self.output or ""  # checked by `place`
        given = {
            "resultFormat": self.result_format,
            "resultSchema": self.schema(spark),
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
        writer = writer.options(**values.pairs("--output-option", self.output_option, "header=true"))
        is_new = not os.path.lexists(place)
        try:
            writer.save(place)
        except BaseException:
            if is_new:
                with suppress(
                    OSError
                ):  # an empty folder of Spark would block the next try; others are for users to judge
                    os.rmdir(place)
            raise
        return int(observation.get["rows"])


def daemon_options(caller: Caller) -> dict[str, str]:
    """The daemon of a command line, as options of the data source. Spark redacts the token where it shows options."""
    address = address_of(caller.settings)
    found = {"address": write_address(address)}
    if not is_local(address):
        found["token"] = read_token(caller.settings)
    return found


def _format_of(path: str) -> str:
    """The format of a path by the end of its name; Parquet by default."""
    name = path.rstrip("/").removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
    return _BY_SUFFIX.get(os.path.splitext(name)[1].lower(), "parquet")
