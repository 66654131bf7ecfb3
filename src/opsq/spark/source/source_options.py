"""What users may say to `format("opsq")`: options parsed once into frozen structs, unknown names refused with the nearest one.

This file must not connect to anything or import PySpark. Spark hands options over lower-cased and all as text, so names
are compared without case; a token is never shown by `repr`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec

from opsq.errors import UsageError
from opsq.strategy.tree import is_integer, parse_value
from opsq.units import parse_duration, parse_size

ChunkFormat = Literal["parquet", "arrow", "jsonl", "csv", "text"]
CHUNK_FORMATS: tuple[ChunkFormat, ...] = ("parquet", "arrow", "jsonl", "csv", "text")
RESULT_FORMATS = (*CHUNK_FORMATS, "binary")
METADATA_COLUMNS = ("_submission", "_chunk", "_attempts")
MODES = ("results", "chunks")
DEFAULT_BYTES_PER_CHUNK = 1 << 20
DEFAULT_LEASE_S = 3600.0
DEFAULT_CHUNKS_PER_TRIGGER = 1000

_META = "meta."
T = TypeVar("T")


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the daemon; nothing at all: as the settings say (environment, files, defaults).

    Attributes:
        state_dir: the daemon's state folder.
        address: a socket path, or host:port.
        token: for TCP.
    """

    state_dir: str | None = None
    address: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Reach(state_dir={self.state_dir!r}, address={self.address!r}, token={'…' if self.token else None!r})"


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `df.write.format("opsq")`; see `OpsqDataSource`. `rows_per_chunk` and `bytes_per_chunk` exclude each other."""

    reach: Reach
    chunk_format: ChunkFormat
    rows_per_chunk: int | None
    bytes_per_chunk: int | None
    idempotency_key: str | None
    metadata: dict[str, int | str]
    priority: int
    max_attempts: int | None
    on_dead: Literal["fail", "keep"]
    expires_s: float | None
    reservation_s: float | None
    wait_for_room: bool | float


class ColumnOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which columns a read has: of the data (None: all), and those that tell of the chunk."""

    columns: tuple[str, ...] | None
    metadata_columns: tuple[str, ...]


class ReadOptions(ColumnOptions, frozen=True, kw_only=True):
    """Options of `spark.read` and `spark.readStream`; see `OpsqDataSource`."""

    reach: Reach
    submission: str
    result_format: str | None
    result_schema: str | None
    skips_dead: bool
    chunks_per_partition: int | None
    max_chunks_per_trigger: int | None


class ChunkOptions(ColumnOptions, frozen=True, kw_only=True):
    """Options of `spark.readStream` with `mode` chunks; see `OpsqDataSource`."""

    reach: Reach
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
    given = _Given(options, WRITE_NAMES, "write")
    if given.has("path"):
        raise UsageError(
            "save() takes no path: a submission lies where the daemon keeps it.",
            hint="Write .save() without an argument.",
        )
    if given.has("rowsPerChunk") and given.has("bytesPerChunk"):
        raise UsageError("rowsPerChunk and bytesPerChunk exclude each other.", hint="Give one of them.")
    rows = given.parsed("rowsPerChunk", _count)
    size_bytes = given.parsed("bytesPerChunk", _size)
    return WriteOptions(
        reach=given.reach(),
        chunk_format=cast("ChunkFormat", given.choice("chunkFormat", CHUNK_FORMATS, "parquet")),
        rows_per_chunk=rows,
        bytes_per_chunk=size_bytes if size_bytes or rows else DEFAULT_BYTES_PER_CHUNK,
        idempotency_key=given.parsed("idempotencyKey", _key),
        metadata=given.metadata(),
        priority=given.parsed("priority", _integer) or 0,
        max_attempts=given.parsed("maxAttempts", _count),
        on_dead=cast("Literal['fail', 'keep']", given.choice("onDead", ("fail", "keep"), "fail")),
        expires_s=given.parsed("expires", parse_duration),
        reservation_s=given.parsed("reservation", parse_duration),
        wait_for_room=given.parsed("waitForRoom", _wait) or False,
    )


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of a read, batch or stream.

    Raises:
        UsageError: an option is unknown or cannot be understood, or no submission is named.
    """
    if reads_chunks(options):
        raise UsageError(
            "Chunks can be had as a stream only: with spark.readStream.", hint="spark.read gives results: .load(ID)."
        )
    given = _Given(options, READ_NAMES, "read")
    given.choice("mode", MODES, "results")
    named = [text for text in (given.text("path"), given.text("submission")) if text]
    if len(set(named)) != 1:
        raise UsageError(
            "No submission is named." if not named else f"Two submissions are named: {named[0]} and {named[1]}.",
            hint="Give one id: .load(ID).",
        )
    return ReadOptions(
        reach=given.reach(),
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
    given = _Given(options, CHUNK_NAMES, "stream of chunks")
    given.choice("mode", MODES, "chunks")
    if given.has("path"):
        raise UsageError(
            "load() takes no id here: a stream of chunks takes those that its strategy chooses.",
            hint="For one submission: .option('strategy', 'SelectOnly(submission=ID)').load().",
        )
    consumer = given.parsed("consumer", _consumer)
    if consumer is None:
        raise UsageError(
            "The option consumer is missing: what the query is called in `opsq status` and in the history."
        )
    return ChunkOptions(
        reach=given.reach(),
        consumer=consumer,
        strategy=given.text("strategy") or "Random",
        lease_s=given.parsed("lease", _lease) or DEFAULT_LEASE_S,
        chunk_format=given.choice("chunkFormat", RESULT_FORMATS, None),
        columns=given.parsed("columns", _names),
        metadata_columns=given.metadata_columns(),
        chunks_per_partition=given.parsed("chunksPerPartition", _count),
        max_chunks_per_trigger=given.parsed("maxChunksPerTrigger", _count) or DEFAULT_CHUNKS_PER_TRIGGER,
    )


_REACH_NAMES = ("stateDir", "address", "token", "tokenFile")
WRITE_NAMES = (
    *_REACH_NAMES,
    "path",
    "chunkFormat",
    "rowsPerChunk",
    "bytesPerChunk",
    "idempotencyKey",
    "metadata",
    "priority",
    "maxAttempts",
    "onDead",
    "expires",
    "reservation",
    "waitForRoom",
    "checkpointLocation",
)
READ_NAMES = (
    *_REACH_NAMES,
    "path",
    "submission",
    "mode",
    "resultFormat",
    "resultSchema",
    "columns",
    "metadataColumns",
    "deadChunks",
    "chunksPerPartition",
    "maxChunksPerTrigger",
)
CHUNK_NAMES = (
    *_REACH_NAMES,
    "path",
    "mode",
    "consumer",
    "strategy",
    "lease",
    "chunkFormat",
    "columns",
    "metadataColumns",
    "chunksPerPartition",
    "maxChunksPerTrigger",
)
_ELSEWHERE = {
    name.lower(): what
    for what, names in (("stream of chunks", CHUNK_NAMES), ("read", READ_NAMES), ("write", WRITE_NAMES))
    for name in names
}
"""Names that only others know are told as such."""


class _Given:
    """The options as they came, looked up without regard to case."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...], what: str) -> None:
        self._texts = {str(key).lower(): str(value) for key, value in dict(options).items()}
        known = {name.lower(): name for name in names}
        for key in self._texts:
            if key in known or (what == "write" and key.startswith(_META)):
                continue
            if key in _ELSEWHERE:
                raise UsageError(f"The option {key!r} is one of a {_ELSEWHERE[key]}, not of a {what}.")
            _known(key, names, f"option of a {what}")

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

    def reach(self) -> Reach:
        token, path = self.text("token"), self.text("tokenFile")
        if token is not None and path is not None:
            raise UsageError(
                "token and tokenFile exclude each other.", hint="Prefer tokenFile: its path tells nobody anything."
            )
        if path is not None:
            token = _read_token(path)
        if self.has("stateDir") and self.has("address"):
            raise UsageError(
                "stateDir and address exclude each other.", hint="Give the one that every executor can use."
            )
        return Reach(state_dir=self.text("stateDir"), address=self.text("address"), token=token)

    def metadata_columns(self) -> tuple[str, ...]:
        text = (self.text("metadataColumns") or "").lower()
        if text in ("", "true", "false"):
            return METADATA_COLUMNS if text == "true" else ()
        wanted = self.parsed("metadataColumns", _names) or ()
        for name in wanted:
            _known(name, METADATA_COLUMNS, "metadata column")
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
                        hint="Names of options come in lower case from Spark; metadata, a JSON object, keeps the case of keys.",
                    )
                found[key] = _value(text)
        return found


def _known(name: str, names: Iterable[str], what: str) -> None:
    by_lower = {known.lower(): known for known in names}
    if name.lower() in by_lower:
        return
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    hint = f"Did you mean {by_lower[near[0]]}?" if near else f"There are {', '.join(names)}."
    raise UsageError(f"{name!r} is no {what}.", hint=hint)


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError as error:
        raise UsageError(f"The tokenFile {path} cannot be read: {error.strerror}.") from error


def _value(text: str) -> int | str:
    try:
        return parse_value(text)
    except ValueError as error:
        raise UsageError(f"A value of the metadata cannot be read: {error}.") from error


def _integer(text: str) -> int:
    if not is_integer(text):
        raise ValueError("it is no whole number")
    return int(text)


def _count(text: str) -> int:
    number = _integer(text)
    if number < 1:
        raise ValueError("it is not 1 or more")
    return number


def _consumer(text: str) -> str:
    if not 1 <= len(text) <= 255:
        raise ValueError("a name has 1 to 255 characters")
    return text


def _lease(text: str) -> float:
    lease_s = parse_duration(text)
    if lease_s < 1:
        raise ValueError("it is not 1s or more")
    return lease_s


def _wait(text: str) -> bool | float:
    return text.lower() == "true" if text.lower() in ("true", "false") else parse_duration(text)


def _size(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes < 1:
        raise ValueError("it is not 1 byte or more")
    return size_bytes


def _key(text: str) -> str:
    if not 1 <= len(text) <= 1000:
        raise ValueError("a key has 1 to 1000 characters")
    return text


def _names(text: str) -> tuple[str, ...]:
    """Names with commas in between; a JSON array, where a name has a comma itself."""
    if text.startswith("["):
        names = tuple(msgspec.json.decode(text, type=list[str]))
    else:
        names = tuple(name.strip() for name in text.split(","))
    if not names or not all(names) or len(set(names)) < len(names):
        raise ValueError("write distinct names with commas in between, or a JSON array of them")
    return names
