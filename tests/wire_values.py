"""Values of the wire at the ends of what their types allow, and beyond, for each field of each request.

It reads the types and knows no field by name; what makes a request meaningful (ids that exist) comes from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

LONG_COUNT = 20_000
"""Arrays that may be longer are not filled: a frame ends before they do."""


class Variant(NamedTuple):
    """One request, as MessagePack, in which one field has a value of interest."""

    field: str
    content: bytes
    is_possible: bool

    def __str__(self) -> str:
        return f"{self.field}{'' if self.is_possible else ' beyond'}"


def variants(kind: type[msgspec.Struct], known: Mapping[str, Callable[[], Any]]) -> Iterator[Variant]:
    """The request with each of its fields in turn at each end of its range, and beyond that.

    Args:
        known: by the name of a field or part, what makes its value where the type does not tell enough.
    """
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field, value, is_possible in _of_struct(info, "", known):
        yield Variant(field, msgspec.msgpack.encode(value), is_possible)


def unbounded(kind: inspect.Type, name: str) -> Iterator[str]:
    """The fields that have a number, text or array without bounds in them."""
    match kind:
        case inspect.IntType(ge=None, gt=None) | inspect.FloatType(ge=None, gt=None):
            yield f"{name} has no least value"
        case inspect.IntType(le=None, lt=None, ge=least, gt=above) if (least, above) not in {(0, None), (None, 0)}:
            yield f"{name} has no greatest value"
        case inspect.FloatType(le=None, lt=None):
            yield f"{name} has no greatest value"
        case inspect.StrType(max_length=None, pattern=None) | inspect.BytesType(max_length=None):
            yield f"{name} may be of any length"
        case inspect.UnionType(types=types):
            for one in types:
                yield from unbounded(one, name)
        case inspect.ListType(item_type=item, max_length=most):
            if most is None:
                yield f"{name} may be of any length"
            yield from unbounded(item, f"{name}[]")
        case inspect.TupleType(item_types=items):
            for item in items:
                yield from unbounded(item, f"{name}[]")
        case inspect.DictType(key_type=key, value_type=value, max_length=most):
            if most is None:
                yield f"{name} may be of any length"
            yield from unbounded(key, f"key of {name}")
            yield from unbounded(value, f"value of {name}")
        case inspect.StructType(fields=fields, cls=cls):
            for field in fields:
                yield from unbounded(field.type, f"{cls.__name__}.{field.name}")


def plain(kind: inspect.Type, known: Mapping[str, Callable[[], Any]]) -> Any:
    """A value in the middle of what a type allows."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            return 1 if isinstance(kind, inspect.IntType) else 1.0
        case inspect.StrType(pattern=pattern):
            return "/tmp" if pattern is not None and "/" in pattern else "key"
        case inspect.BytesType(min_length=least):
            return b"\x01" * (least or 1)
        case inspect.LiteralType(values=words):
            return words[0]
        case inspect.BoolType():
            return True
        case inspect.UnionType(types=types):
            return plain(next(one for one in types if not isinstance(one, inspect.NoneType)), known)
        case inspect.ListType(item_type=item):
            return [plain(item, known)]
        case inspect.TupleType(item_types=items):
            return [plain(item, known) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {plain(key, known): plain(value, known)}
        case inspect.RawType():
            return None
        case inspect.StructType():
            return _base(kind, known)
    raise AssertionError(f"no value for {kind}")


def _base(kind: inspect.StructType, known: Mapping[str, Callable[[], Any]]) -> list[Any]:
    """A struct as an array; what has a default has it, so that options do not cannot be combined."""
    if kind.cls.__name__ in known:
        return list(known[kind.cls.__name__]())
    found: list[Any] = [] if kind.tag is None else [kind.tag]
    for field in kind.fields:
        if field.name in known:
            found.append(known[field.name]())
        elif field.default is not inspect.NODEFAULT:
            found.append(msgspec.msgpack.decode(msgspec.msgpack.encode(field.default)))
        elif field.default_factory is not inspect.NODEFAULT:
            found.append(field.default_factory())
        else:
            found.append(plain(field.type, known))
    return found


def _of_struct(
    kind: inspect.StructType, name: str, known: Mapping[str, Callable[[], Any]]
) -> Iterator[tuple[str, Any, bool]]:
    for number, field in enumerate(kind.fields, int(kind.tag is not None)):
        if field.name == "id" and kind.tag is not None:
            continue  # what has no proper id cannot be answered
        path = f"{name}.{field.name}" if name else field.name
        for found, value, is_possible in _of(field.type, path, known):
            base = _base(kind, known)
            base[number] = value
            yield found, base, is_possible


def _of(
    kind: inspect.Type, name: str, known: Mapping[str, Callable[[], Any]], *, is_alone: bool = True
) -> Iterator[tuple[str, Any, bool]]:
    """Values of a type, with the field that they are about, and whether the type allows them."""
    match kind:
        case inspect.IntType(ge=least, gt=above, le=most, lt=below):
            low = least if least is not None else above + 1 if above is not None else -(1 << 63)
            high = most if most is not None else below - 1 if below is not None else (1 << 64) - 1
            yield from ((name, value, True) for value in (low, high))
            yield from ((name, value, False) for value in (low - 1, high + 1) if -(1 << 63) <= value < 1 << 64)
        case inspect.FloatType(ge=least, gt=above, le=most):
            low = least if least is not None else math.nextafter(above or 0.0, math.inf)
            yield from ((name, value, True) for value in (low, float(most or 0)))
            beyond = (
                math.nextafter(low, -math.inf),
                math.nextafter(most or 0, math.inf),
                math.nan,
                math.inf,
                -math.inf,
            )
            yield from ((name, value, False) for value in beyond)
        case inspect.StrType(pattern=pattern, min_length=least, max_length=most):
            if pattern is not None and "/" in pattern:
                yield from ((name, value, False) for value in ("relative", "/a\0b", "/a\n\0", "/" + "x" * (most or 0)))
            elif pattern is not None:
                yield from ((name, value, True) for value in ("a" * 64, "_"))
                yield from ((name, value, False) for value in ("a" * 65, "", "key\n", "1", "ä", "key\0"))
            else:
                longest = most or 0
                texts = ("x" * longest, "\U0001f600" * longest, "\0" * longest, "x" * (least or 0))
                yield from ((name, value, True) for value in texts)
                yield name, "x" * (longest + 1), False
                if least:
                    yield name, "", False
        case inspect.BytesType(min_length=least, max_length=most):
            yield from ((name, b"\xff" * length, True) for length in {least or 0, most or 0})
            yield name, b"\xff" * ((most or 0) + 1), False
        case inspect.LiteralType(values=words):
            yield from ((name, word, True) for word in words)
            yield from ((name, word, False) for word in ("", "other", f"{words[0]} "))
        case inspect.BoolType():
            yield from ((name, value, True) for value in (False, True))
        case inspect.UnionType(types=types):
            for one in types:
                yield from _of(one, name, known, is_alone=False)
            return
        case inspect.NoneType():
            yield name, None, True
            return
        case inspect.ListType(item_type=item, max_length=most):
            yield name, [], True
            if most is not None and most <= LONG_COUNT:
                one = plain(item, known)
                yield name, [one] * most, True
                yield name, [one] * (most + 1), False
            for found, value, is_possible in _of(item, f"{name}[0]", known):
                yield found, [value], is_possible
        case inspect.TupleType(item_types=items):
            for number, item in enumerate(items):
                for _, value, is_possible in _of(item, name, known):
                    base = [plain(one, known) for one in items]
                    base[number] = value
                    yield name, base, is_possible
        case inspect.DictType(key_type=key, value_type=value_type, max_length=most):
            yield name, {}, True
            some = plain(value_type, known)
            yield name, {f"key{number}": some for number in range(most or 0)}, True
            yield name, {f"key{number}": some for number in range((most or 0) + 1)}, False
            for _, value, is_possible in _of(key, name, known):
                if isinstance(value, str):
                    yield name, {value: some}, is_possible
            for _, value, is_possible in _of(value_type, name, known):
                yield name, {plain(key, known): value}, is_possible
        case inspect.StructType():
            yield from _of_struct(kind, name, known)
        case inspect.RawType():
            return
        case _:
            raise AssertionError(f"no values for {kind}")
    if is_alone:
        yield name, {"of": ["another", "type"]} if not isinstance(kind, inspect.DictType) else "text", False


def values(
    kind: inspect.Type, ids: list[int], known: Mapping[str, st.SearchStrategy[Any]] | None = None
) -> st.SearchStrategy[Any]:
    """Values of a field, as its type and bounds allow them; small numbers and ids that exist are likely."""
    match kind:
        case inspect.IntType(ge=low, gt=above, le=high, lt=below):
            least = low if low is not None else above + 1 if above is not None else -(1 << 63)
            most = min(high if high is not None else (1 << 64) - 1, below - 1 if below is not None else 1 << 64)
            small = [value for value in (0, 1, 2, 63, 64, *ids) if least <= value <= most]
            return st.sampled_from(small) | st.integers(least, most) if small else st.integers(least, most)
        case inspect.FloatType(ge=low, gt=above, le=high):
            least = low if low is not None else above if above is not None else 0.0
            return st.floats(
                least, min(high or 1e9, 1e9), allow_nan=False, exclude_min=low is None and above is not None
            )
        case inspect.StrType(pattern=pattern, max_length=longest, min_length=least):
            if pattern is not None:
                return st.sampled_from(["key", "submission", "a.b-c"])
            texts = st.sampled_from(["Random", "OldestFirst", "open", "NewestFirst(", "x"]) | st.text(
                max_size=min(longest or 20, 20)
            )
            return texts.filter(lambda text: len(text) >= (least or 0))
        case inspect.BytesType(min_length=least, max_length=most):
            return st.binary(min_size=least or 0, max_size=min(most or 50, 50))
        case inspect.LiteralType(values=words):
            return st.sampled_from(words)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.UnionType(types=types):
            return st.one_of([values(one, ids, known) for one in types])
        case inspect.ListType(item_type=item):
            return st.lists(values(item, ids, known), max_size=3)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(values(item, ids, known) for item in items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key, ids, known), values(value, ids, known), max_size=2)
        case inspect.RawType():
            return st.sampled_from([None, [], [b"r"], [b"a", b"b"], 7, ["o", 0, 1]]).map(
                lambda one: msgspec.Raw(msgspec.msgpack.encode(one))
            )
        case inspect.StructType(cls=cls) if known and cls.__name__ in known:
            return known[cls.__name__]
        case inspect.StructType(fields=fields, cls=cls):
            return st.builds(cls, **{field.name: values(field.type, ids, known) for field in fields})
    raise AssertionError(f"no values for {kind}")
