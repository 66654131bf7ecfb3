"""The options of `format("opsq")`: parsed once into frozen structs; an unknown name is refused with the nearest one.

This file must not connect to anything or import PySpark. Spark passes options in lower case and all as text, so names
are compared without case; `repr` never shows a token.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, cast

import msgspec

from opsq.client.core.address import token_in
from opsq.client.core.new_submission import RoomWait, SubmissionOptions
from opsq.errors import UsageError
from opsq.spark.source.rule_options import RULES, camel_case, read_rules
from opsq.strategy.tree import is_integer, parse_value
from opsq.traces import TraceContext, read
from opsq.units import counted, format_number, parse_duration, parse_size

FormatName = Literal["parquet", "arrow", "jsonl", "csv", "text"]
CHUNK_FORMATS: tuple[FormatName, ...] = ("parquet", "arrow", "jsonl", "csv", "text")
RESULT_FORMATS = (*CHUNK_FORMATS, "binary")
METADATA_COLUMNS = ("_submission", "_chunk", "_attempts")
MODES = ("results", "chunks")
DEFAULT_LEASE_S = 3600.0
DEFAULT_CHUNKS_PER_TRIGGER = 1000

_META = "meta."
_VIEW = "CREATE TEMPORARY VIEW NAME USING opsq OPTIONS (submission 'ID')"
_QUERY = "SELECT … FROM NAME WITH (submission = 'ID')"
"""Of a table, which has nothing but columns."""
_OF_CATALOG = "provider"
"""What the catalog adds to the options of a table that it creates; it forgets them all before the table is read."""
T = TypeVar("T")
N = TypeVar("N", int, float)


def _option_name(field: str) -> str:
    return camel_case(field.removesuffix("_s"))  # expires_s is `expires`


class DaemonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the daemon is; without any of these, as the settings say (environment, files, defaults).

    Attributes:
        state_dir: the daemon's state folder.
        address: a socket path, or host:port.
        token: for TCP.
    """

    state_dir: str | None = None
    address: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return (
            f"DaemonOptions(state_dir={self.state_dir!r}, address={self.address!r}, "
            f"token={'…' if self.token else None!r})"
        )


class DaemonKeywords(TypedDict, total=False):
    """Where the daemon is, as keyword arguments; see `DaemonOptions`."""

    state_dir: str | os.PathLike[str] | None
    address: str | None
    token: str | None
    token_file: str | os.PathLike[str] | None


class WriteKeywords(SubmissionOptions, DaemonKeywords, total=False):
    """The keyword arguments of `opsq.spark.write`; those of a submission are those of `Producer.submit`."""

    chunk_format: FormatName | None
    rows_per_chunk: int | None
    bytes_per_chunk: int | str | None
    wait_for_room: RoomWait
    traceparent: str | None


class ReadKeywords(DaemonKeywords, total=False):
    """The keyword arguments of `opsq.spark.results`, the options of a read."""

    columns: Sequence[str] | str | None
    metadata_columns: Sequence[str] | str | bool | None
    dead_chunks: Literal["fail", "skip"] | None
    result_format: Literal["parquet", "arrow", "jsonl", "csv", "text", "binary"] | None
    result_schema: str | None
    chunks_per_partition: int | None


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True, rename=_option_name):
    """Options of `df.write.format("opsq")`; see `OpsqDataSource`. One of the two sizes of chunks is None, or both are.

    `rules` are the options of any submission, as keyword arguments of `Producer.submit`.
    """

    daemon: DaemonOptions
    chunk_format: FormatName
    rows_per_chunk: int | None
    bytes_per_chunk: int | None
    rules: dict[str, Any]
    wait_for_room: bool | float
    traceparent: TraceContext | None


class ColumnOptions(msgspec.Struct, frozen=True, kw_only=True, rename=_option_name):
    """Which columns a read has: of the data (None: all), and about the chunk."""

    columns: tuple[str, ...] | None
    metadata_columns: tuple[str, ...]


class ReadOptions(ColumnOptions, frozen=True, kw_only=True):
    """Options of `spark.read` and `spark.readStream`; see `OpsqDataSource`."""

    daemon: DaemonOptions
    submission: str
    result_format: str | None
    result_schema: str | None
    skips_dead: bool = msgspec.field(name="deadChunks")
    chunks_per_partition: int | None
    max_chunks_per_trigger: int | None


class ChunkOptions(ColumnOptions, frozen=True, kw_only=True):
    """Options of `spark.readStream` with `mode` chunks; see `OpsqDataSource`."""

    daemon: DaemonOptions
    consumer: str
    strategy: str
    lease_s: float
    chunk_format: str | None
    chunks_per_partition: int | None
    max_chunks_per_trigger: int


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a write.

    Raises:
        UsageError: an option is unknown, cannot be understood, or excludes another.
    """
    given = _Given(options, "write")
    if given.has("path"):
        raise UsageError(
            "save() takes no path: the daemon decides where a submission is stored.",
            hint="Write .save() without an argument.",
        )
    if given.has("rowsPerChunk") and given.has("bytesPerChunk"):
        raise UsageError("rowsPerChunk and bytesPerChunk cannot be combined.", hint="Give one of them.")
    return WriteOptions(
        daemon=given.daemon(),
        chunk_format=cast("FormatName", given.choice("chunkFormat", CHUNK_FORMATS, "parquet")),
        rows_per_chunk=given.parsed("rowsPerChunk", _count),
        bytes_per_chunk=given.parsed("bytesPerChunk", _size),
        rules=read_rules(given.text, given.metadata()),
        wait_for_room=given.parsed("waitForRoom", _wait) or False,
        traceparent=given.parsed("traceparent", _trace),
    )


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of a read, batch or stream.

    Raises:
        UsageError: an option is unknown or cannot be understood, or no submission is named.
    """
    if reads_chunks(options):
        raise UsageError(
            "Chunks can only be read as a stream: use spark.readStream.", hint="spark.read gives results: .load(ID)."
        )
    given = _Given(options, "read")
    given.choice("mode", MODES, "results")
    named = [text for text in (given.text("path"), given.text("submission")) if text]
    if len(set(named)) != 1:
        raise UsageError(
            "No submission is named." if not named else f"Two submissions are named: {named[0]} and {named[1]}.",
            hint=f"Give one id: .load(ID), or in SQL {_VIEW}, or of a table {_QUERY}.",
        )
    return ReadOptions(
        daemon=given.daemon(),
        submission=named[0],
        result_format=given.choice("resultFormat", RESULT_FORMATS, None),
        columns=given.parsed("columns", _names),
        metadata_columns=given.metadata_columns(),
        result_schema=given.text("resultSchema"),
        skips_dead=given.choice("deadChunks", ("fail", "skip"), "fail") == "skip",
        chunks_per_partition=given.parsed("chunksPerPartition", _count),
        max_chunks_per_trigger=given.parsed("maxChunksPerTrigger", _count),
    )


def reads_chunks(options: Mapping[str, str]) -> bool:
    """Whether the options of a read ask for chunks, not results."""
    return any(
        str(key).lower() == "mode" and str(value).strip().lower() == "chunks" for key, value in dict(options).items()
    )


def parse_chunks(options: Mapping[str, str]) -> ChunkOptions:
    """Read the options of a stream of chunks.

    Raises:
        UsageError: an option is unknown or cannot be understood, or the consumer has no name.
    """
    given = _Given(options, "stream of chunks")
    given.choice("mode", MODES, "chunks")
    if given.has("path"):
        raise UsageError(
            "load() takes no id here: the strategy selects the chunks of a stream.",
            hint="For one submission: .option('strategy', 'SelectOnly(submission=ID)').load().",
        )
    consumer = given.parsed("consumer", _within(255, "name"))
    if consumer is None:
        raise UsageError("The option consumer is missing: the name of the query in `opsq status` and in the history.")
    return ChunkOptions(
        daemon=given.daemon(),
        consumer=consumer,
        strategy=given.text("strategy") or "Random",
        lease_s=given.parsed("lease", _lease) or DEFAULT_LEASE_S,
        chunk_format=given.choice("chunkFormat", RESULT_FORMATS, None),
        columns=given.parsed("columns", _names),
        metadata_columns=given.metadata_columns(),
        chunks_per_partition=given.parsed("chunksPerPartition", _count),
        max_chunks_per_trigger=given.parsed("maxChunksPerTrigger", _count) or DEFAULT_CHUNKS_PER_TRIGGER,
    )


def _names_of(options: type[msgspec.Struct], *others: str) -> tuple[str, ...]:
    fields = (name for name in options.__struct_encode_fields__ if name != "daemon")
    return ("stateDir", "address", "token", "tokenFile", "path", *fields, *others)


_NAMES = {
    "stream of chunks": _names_of(ChunkOptions, "mode"),
    "read": _names_of(ReadOptions, "mode"),
    "write": (
        *(name for name in _names_of(WriteOptions) if name != "rules"),
        *RULES,
        "checkpointLocation",
    ),
}
_USED_BY = {name.lower(): what for what, names in _NAMES.items() for name in names}
"""An option given to the wrong operation is reported as such."""


class _Given:
    """The options as they came, looked up without regard to case."""

    def __init__(self, options: Mapping[str, str], what: str) -> None:
        self._texts = {str(key).lower(): str(value) for key, value in dict(options).items()}
        if _OF_CATALOG in self._texts:
            raise UsageError(
                "A table of Spark's catalog keeps no options for a source in Python, so nothing would say which "
                "submission it has.",
                hint=f"Write {_VIEW}, or give the table its columns and write {_QUERY}.",
            )
        known = {name.lower() for name in _NAMES[what]}
        for key in self._texts:
            if key in known or (what == "write" and key.startswith(_META)):
                continue
            if key in _USED_BY:
                raise UsageError(f"The option {key!r} is for a {_USED_BY[key]}, not for a {what}.")
            _check_known(key, _NAMES[what], f"option of a {what}")

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower())

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text.strip())
        except ValueError as error:
            raise UsageError(f"The option {name} cannot be {text!r}: {error}.") from error

    def choice(self, name: str, allowed: tuple[str, ...], default: Any) -> Any:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in allowed:
            raise UsageError(f"The option {name} cannot be {text!r}.", hint=f"It may be {', '.join(allowed)}.")
        return text.strip().lower()

    def daemon(self) -> DaemonOptions:
        token, path = self.text("token"), self.text("tokenFile")
        if token is not None and path is not None:
            raise UsageError("token and tokenFile cannot be combined.", hint="Prefer tokenFile: a path is no secret.")
        if path is not None:
            token = _read_token(path)
        if self.has("stateDir") and self.has("address"):
            raise UsageError(
                "stateDir and address cannot be combined.", hint="Give the one that every executor can use."
            )
        return DaemonOptions(state_dir=self.text("stateDir"), address=self.text("address"), token=token)

    def metadata_columns(self) -> tuple[str, ...]:
        text = (self.text("metadataColumns") or "").lower()
        if text in ("", "true", "false"):
            return METADATA_COLUMNS if text == "true" else ()
        wanted = self.parsed("metadataColumns", _names) or ()
        for name in wanted:
            _check_known(name, METADATA_COLUMNS, "metadata column")
        return wanted

    def metadata(self) -> dict[str, int | str]:
        found: dict[str, int | str] = {}
        whole = self.text("metadata")
        if whole is not None:
            try:
                found = msgspec.json.decode(whole, type=dict[str, int | str])
            except msgspec.DecodeError as error:
                raise UsageError(
                    f"The option metadata cannot be {whole!r}: {error}.",
                    hint="""Write a JSON object: {"Tenant": "acme", "run": 7}.""",
                ) from error
        in_json = {key.lower(): key for key in found}
        for name, text in self._texts.items():
            if name.startswith(_META):
                key = name.removeprefix(_META)
                if key in in_json:
                    raise UsageError(
                        f"The metadata has {in_json[key]} twice: in the option metadata and as {name}.",
                        hint="Spark passes option names in lower case; metadata, a JSON object, keeps the case of its "
                        "keys.",
                    )
                found[key] = _value(text)
        return found


def check_keywords(given: Iterable[str], record: type[ReadKeywords | WriteKeywords], function: str) -> None:
    """Refuse what is not a keyword argument of a function.

    Raises:
        UsageError: one of the names is unknown; the nearest that is known is named.
    """
    for name in given:
        _check_known(name, record.__annotations__, f"argument of {function}()")


def _check_known(name: str, names: Iterable[str], what: str) -> None:
    by_lower = {known.lower(): known for known in names}
    if name.lower() in by_lower:
        return
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    hint = f"Did you mean {by_lower[near[0]]}?" if near else f"Known are {', '.join(names)}."
    raise UsageError(f"{name!r} is not a known {what}.", hint=hint)


def _read_token(path: str) -> str:
    try:
        return token_in(path)
    except OSError as error:
        raise UsageError(f"The tokenFile {path} cannot be read: {error.strerror}.") from error


def _value(text: str) -> int | str:
    try:
        return parse_value(text)
    except ValueError as error:
        raise UsageError(f"A value of the metadata cannot be read: {error}.") from error


def _integer(text: str) -> int:
    if not is_integer(text):
        raise ValueError("it is not a whole number")
    return int(text)


def _at_least(least: float, parse: Callable[[str], N], unit: str = "") -> Callable[[str], N]:
    def checked(text: str) -> N:
        number = parse(text)
        if number < least:
            raise ValueError(f"it must be at least {format_number(least)}{unit}")
        return number

    return checked


_count = _at_least(1, _integer)
_lease = _at_least(1, parse_duration, "s")
_size = _at_least(1, parse_size, " byte")


def _wait(text: str) -> bool | float:
    return text.lower() == "true" if text.lower() in ("true", "false") else parse_duration(text)


def _trace(text: str) -> TraceContext:
    context = read({"traceparent": text})
    if context is None:
        raise ValueError("it is not a traceparent as W3C Trace Context has it")
    return context


def _within(most: int, what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not 1 <= len(text) <= most:
            raise ValueError(f"a {what} has 1 to {counted(most, 'character')}")
        return text

    return parse


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON array if a name contains a comma."""
    if text.startswith("["):
        names = tuple(msgspec.json.decode(text, type=list[str]))
    else:
        names = tuple(name.strip() for name in text.split(","))
    if not names or not all(names) or len(set(names)) < len(names):
        raise ValueError("write distinct names separated by commas, or a JSON array of them")
    return names
