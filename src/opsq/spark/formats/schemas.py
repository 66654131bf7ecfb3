"""Spark's types and Arrow's: which columns a chunk format can hold, and conversions of schemas.

Only this file imports PySpark's private conversions of types. It must not touch data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from opsq.errors import UsageError
from opsq.spark.spark_errors import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_FLAT: tuple[type[t.DataType], ...] = (
    t.BooleanType,
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
    t.StringType,
    t.DateType,
    t.TimestampType,
    t.TimestampNTZType,
)
_NESTED: tuple[type[t.DataType], ...] = (t.ArrayType, t.MapType, t.StructType)
_HELD: dict[str, tuple[type[t.DataType], ...]] = {
    "parquet": (*_FLAT, *_NESTED, t.BinaryType, t.DayTimeIntervalType),
    "arrow": (*_FLAT, *_NESTED, t.BinaryType, t.DayTimeIntervalType),
    "jsonl": (*_FLAT, *_NESTED, t.BinaryType),
    "csv": _FLAT,
    "text": (t.StringType,),
}
_ALIKE: dict[pa.DataType, t.DataType] = {
    pa.uint8(): t.ShortType(),
    pa.uint16(): t.IntegerType(),
    pa.uint32(): t.LongType(),
    pa.uint64(): t.DecimalType(20, 0),
    pa.float16(): t.FloatType(),
    pa.date64(): t.DateType(),
    pa.string_view(): t.StringType(),
    pa.binary_view(): t.BinaryType(),
}


def arrow_schema(schema: t.StructType) -> pa.Schema:
    """The Arrow schema in which Spark exchanges these columns; timestamps are in UTC."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def spark_schema(schema: pa.Schema, *, what: str) -> t.StructType:
    """The Spark schema of Arrow columns; all are nullable, as in any file that Spark reads.

    Raises:
        UsageError: Spark has no equivalent of a type; `what` says whose columns these are.
    """
    fields = []
    for field in schema:
        try:
            fields.append(t.StructField(field.name, _spark_type(field.type)))
        except Exception as error:
            raise UsageError(
                f"Column {field.name!r} of {what} is {field.type}, and Spark has no such type.",
                hint="Name the columns that you need with the option columns, or give a schema.",
            ) from error
    return t.StructType(fields)


def read_schema(text: str) -> t.StructType:
    """A schema from Spark's JSON (that of `DataFrame.schema.json()`); only a JVM can read DDL, and there is none here.

    All columns are nullable at any depth, as in any file that Spark reads: the bytes need not keep what the schema
    promises.

    Raises:
        UsageError: the text is not a schema.
    """
    try:
        return nullable(t.StructType.fromJson(json.loads(text)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"The schema {text!r} cannot be understood.",
            hint="resultSchema is `same` or the JSON of DataFrame.schema.json(); for DDL use .schema('a INT, b "
            "STRING').",
        ) from error


def given_schema(given: str | t.StructType | pa.Schema, spark: SparkSession, *, name: str) -> t.StructType:
    """A schema as a user gives it: DDL, which the session parses, Spark's JSON, or a schema of Spark or Arrow.

    Args:
        given: the schema.
        spark: the session, also one of Spark Connect.
        name: of the argument, for the error.

    Raises:
        UsageError: it cannot be understood.
    """
    if isinstance(given, t.StructType):
        return given
    if isinstance(given, pa.Schema):
        return spark_schema(given, what=name)
    if not isinstance(given, str):
        raise UsageError(
            f"{name} is {type(given).__name__}.", hint="It is DDL such as 'id BIGINT', a StructType, or Arrow's schema."
        )
    if given.lstrip().startswith("{"):
        return read_schema(given)
    from pyspark.errors import PySparkException

    try:
        return spark.createDataFrame([], given).schema
    except PySparkException as error:
        raise UsageError(
            f"{name} {given}: Spark cannot parse it: {first_line(str(error))}",
            hint="Write columns as in SQL, such as 'id BIGINT, text STRING'.",
        ) from error


def declared_schema(schema: t.StructType, chunk_format: str) -> pa.Schema:
    """The Arrow schema of columns that are declared for results; whether they may be null holds at the top only.

    Raises:
        UsageError: the format of the chunks, in which results are written, cannot hold one.
    """
    check_writable(schema, chunk_format)
    return pa.schema(
        [
            field.with_nullable(given.nullable)
            for field, given in zip(arrow_schema(nullable(schema)), schema, strict=True)
        ]
    )


def nullable(schema: t.StructType) -> t.StructType:
    """The same columns, all nullable at any depth (except keys of maps)."""
    return t.StructType(
        [t.StructField(field.name, _nullable(field.dataType), metadata=field.metadata) for field in schema]
    )


def _nullable(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType):
        return nullable(kind)
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def check_writable(schema: t.StructType, chunk_format: str) -> None:
    """Check that a chunk format can hold all columns, before anything is written.

    Raises:
        UsageError: it cannot; the column is named.
    """
    names = schema.names
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two columns are named {name!r}.", hint="Rename one with .withColumnRenamed or .toDF.")
    if chunk_format == "text" and len(names) != 1:
        raise UsageError(
            f"Lines of text hold one column, not {len(names)}.", hint="Select one, or use jsonl, csv or parquet."
        )
    if not names:
        raise UsageError("The DataFrame has no columns.")
    held = _HELD[chunk_format]
    for path, kind in _walk(schema, ""):
        if not isinstance(kind, held):
            others = [
                other for other in _HELD if all(isinstance(found, _HELD[other]) for _, found in _walk(schema, ""))
            ]
            hint = (
                f"Use chunkFormat {' or '.join(others)}." if others and len(names) > 1 else "Cast it, or leave it out."
            )
            raise UsageError(f"Column {path!r} is {kind.simpleString()}, which {chunk_format} cannot hold.", hint=hint)
        if isinstance(kind, t.StructType):
            inner = kind.names
            twice = [name for name in inner if inner.count(name) > 1]
            if twice:
                raise UsageError(
                    f"Column {path!r} has two fields named {twice[0]!r}.", hint="Rename one, or leave it out."
                )
            if chunk_format == "parquet" and not inner:
                raise UsageError(
                    f"Column {path!r} is a struct without fields, which parquet cannot hold.",
                    hint="Leave it out, or use jsonl.",
                )
        if chunk_format == "jsonl" and isinstance(kind, t.MapType) and not isinstance(kind.keyType, t.StringType):
            raise UsageError(
                f"Column {path!r} is {kind.simpleString()}; the keys of a JSON object are text.",
                hint="Use chunkFormat parquet.",
            )


def selected(schema: t.StructType, columns: Sequence[str]) -> t.StructType:
    """Some of the columns, in the order given.

    Raises:
        UsageError: one does not exist.
    """
    fields = {field.name: field for field in schema}
    missing = [name for name in columns if name not in fields]
    if missing:
        raise UsageError(f"There is no column {missing[0]!r}.", hint=f"The columns are {', '.join(fields)}.")
    return t.StructType([fields[name] for name in columns])


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions and `select` take it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _walk(kind: t.DataType, path: str) -> Iterator[tuple[str, t.DataType]]:
    """All types inside a type, each with its path: `a`, `a.b`, `a[]`, `a{key}`."""
    if isinstance(kind, t.StructType):
        for field in kind:
            inner = f"{path}.{field.name}" if path else field.name
            yield inner, field.dataType
            yield from _walk(field.dataType, inner)
    elif isinstance(kind, t.ArrayType):
        yield f"{path}[]", kind.elementType
        yield from _walk(kind.elementType, f"{path}[]")
    elif isinstance(kind, t.MapType):
        for end, inner_kind in (("{key}", kind.keyType), ("{value}", kind.valueType)):
            yield path + end, inner_kind
            yield from _walk(inner_kind, path + end)


def _spark_type(kind: pa.DataType) -> t.DataType:
    """PySpark's type, or one with the same values where PySpark has none (unsigned, half, dictionaries, …)."""
    if kind in _ALIKE:
        return _ALIKE[kind]
    if pt.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return t.ArrayType(_spark_type(kind.value_type))
    if pt.is_map(kind):
        return t.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pt.is_struct(kind):
        return t.StructType([t.StructField(field.name, _spark_type(field.type)) for field in kind])
    return from_arrow_type(kind, prefer_timestamp_ntz=True)
