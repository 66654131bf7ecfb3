"""Options of verbs as parameters of a query: the same names with `_` for `-`, the same texts, the same complaints.

It must not declare options.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from opsq.options.option import OneOf, Option, Whole

T = TypeVar("T")

_TEXT_LIMIT = 4096


def name_of(option: Option) -> str:
    """What the parameter is called."""
    return option.flags[-1].lstrip("-").replace("-", "_")


def query_of(name: str, *options: Option) -> Any:
    """A struct with a field for each option."""
    return msgspec.defstruct(
        name,
        [(name_of(each), *_type_of(each)) for each in options],
        forbid_unknown_fields=True,
        module=__name__,
    )


def declared(kind: Any, *but: str) -> list[Option]:
    """The options of a set, but for those of some fields."""
    return [option for field, option in kind._field_defaults.items() if field not in but]


def made(kind: type[T], query: msgspec.Struct, **own: Any) -> T:
    """What a set of options makes of the values of a query.

    Args:
        own: fields that are no parameters.

    Raises:
        UsageError: a value is none of its option.
    """
    fields: dict[str, Option] = kind._field_defaults  # type: ignore[attr-defined]  # it is a named tuple
    for field, option in fields.items():
        given = getattr(query, name_of(option), None)
        if field in own or given is None:
            continue
        own[field] = option.read(name_of(option), given) if isinstance(given, str) else given
    return kind(**own)


def _type_of(option: Option) -> tuple[Any, Any]:
    """The type of a parameter, and its default."""
    about, shown = Meta(description=option.help), f"{option.metavar}: {option.help}"
    if option.is_flag:
        return Annotated[bool, about], False
    text: Any = Annotated[str, Meta(max_length=_TEXT_LIMIT)]
    if option.is_many:
        return Annotated[list[text], Meta(max_length=1024, description=shown)], msgspec.field(default_factory=list)
    kind: Any = Annotated[text, Meta(description=shown)]
    if isinstance(option.read, OneOf):
        kind = Annotated[Literal[option.read.words], about]
    elif isinstance(option.read, Whole):
        kind = Annotated[int, Meta(ge=option.read.low, le=option.read.high, description=option.help)]
    return kind | None, None
