"""Reads what the package promises to Python programs, and writes it as the parts of man/opsq-python.7.

What is promised is `opsq.__all__`, and `__all__` of its public modules. This file must not say anything of a function
that its docstring does not say.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from types import ModuleType
from typing import NamedTuple

from roff import roff, sentence

import opsq

MODULES = ("errors", "outbox", "serialisation", "spark", "strategy", "testing", "types")
MADE_BY_OTHERS = (
    "Queue",
    "Producer",
    "Submission",
    "ResultStream",
    "Consumer",
    "Chunk",
    "ChunkBase",
    "Reservation",
    "Clock",
)
"""Classes that programs get from others, and make none of; also with Async or Temporary in front."""
INSIDE = {
    "Consumer": {
        *("attachment", "complete_blocks", "complete_chunk", "describe", "extend", "fail_blocks", "look"),
        *("prepare", "read", "reader", "release_blocks", "share_chunk"),
    },
    "FollowUp": {"prepare"},
    "Queue": {"describe"},
    "Producer": {"describe"},
    "OpsqError": {"__init__"},
    "Strategy": {"arms_count", "children", "depth"},
    "errors": {"from_code"},
    "ChunkView": {"__init__", "content", "reader"},
    "DbConnection": {"__init__"},
}
"""What only other parts of the package call."""


class Promised(NamedTuple):
    """A function, method or property that programs may use.

    Attributes:
        name: as programs write it, `opsq.Queue.submit`.
        function: that of a property is what reads it.
    """

    name: str
    function: Callable[..., object]
    doc: str
    is_property: bool = False


def plain(name: str) -> str:
    """The name of the class that has the same names in the blocking client."""
    return name.removeprefix("Async").removeprefix("Temporary")


def public_names(module: ModuleType) -> list[str]:
    """What a module promises; without `__all__` all that it defines itself."""
    defined = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    names = set(getattr(module, "__all__", defined)) - INSIDE.get(module.__name__.removeprefix("opsq."), set())
    return sorted(name for name in names if name[0] != "_" and not inspect.ismodule(getattr(module, name)))


def modules() -> Iterator[tuple[str, ModuleType]]:
    """The package and its public modules, by name."""
    yield "opsq", opsq
    for name in MODULES:
        yield f"opsq.{name}", importlib.import_module(f"opsq.{name}")


@cache
def classes() -> dict[type, str]:
    """The classes that are promised, and under which name; of several that of the package itself."""
    found: dict[type, str] = {}
    for place, module in modules():
        for name in public_names(module):
            each = getattr(module, name)
            if inspect.isclass(each):
                found.setdefault(each, f"{place}.{name}")
    return found


def told_bases(kind: type) -> list[type]:
    """The bases of a class that have sections of their own, and what is in these; the nearest first."""
    told = [
        base
        for base in kind.__mro__[1:]
        if classes().get(base, "opsq.types.").count(".") == 1 or base is opsq.errors.OpsqError
    ]
    return [base for base in kind.__mro__[1:] if any(issubclass(each, base) for each in told)]


def members(name: str, kind: type) -> Iterator[Promised]:
    """What programs may use of a class; what it has of a base that is promised, too, is told there."""
    owners = [owner for owner in kind.__mro__ if owner.__module__.startswith("opsq")]
    inside = {member for owner in owners for member in INSIDE.get(plain(owner.__name__), ())}
    if plain(kind.__name__) in MADE_BY_OTHERS:
        inside.add("__init__")
    seen = set(inside)
    for owner in owners:
        for member, value in vars(owner).items():
            if member in seen or (member.startswith("_") and member != "__init__"):
                continue
            seen.add(member)
            function = value
            for name_of in ("fget", "func", "__func__"):  # properties, cached ones, class methods
                function = getattr(value, name_of, function)
            if inspect.isfunction(function) and owner not in told_bases(kind):
                doc = kind.__doc__ if member == "__init__" else inspect.getdoc(getattr(kind, member))
                yield Promised(
                    f"{name}.{member}",
                    function,
                    inspect.cleandoc(doc or ""),
                    isinstance(value, property | cached_property),
                )


def promised() -> Iterator[Promised]:
    """All functions, methods and properties."""
    for kind, name in classes().items():
        yield from members(name, kind)
    for place, module in modules():
        for name in public_names(module):
            each = getattr(module, name)
            if inspect.isfunction(each):
                yield Promised(f"{place}.{name}", each, inspect.cleandoc(each.__doc__ or ""))


@cache
def origins(module_name: str) -> dict[str, tuple[str, str]]:
    """Where each name that annotations of a module may have comes from: a module, and its name there."""
    tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update({alias.asname or alias.name: (node.module, alias.name) for alias in node.names})
        elif isinstance(node, ast.ClassDef):
            found[node.name] = (module_name, node.name)
    for statement in tree.body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            if isinstance(target, ast.Name):
                found[target.id] = (module_name, target.id)
    return found


def types_of(one: Promised) -> set[tuple[str, str]]:
    """The types of ours in its annotations: where each is defined, and its name."""
    known = origins(one.function.__module__)
    found = set()
    for annotation in one.function.__annotations__.values():
        for node in ast.walk(ast.parse(annotation if isinstance(annotation, str) else "None")):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                found.add(origin(".".join(known[node.value.id]), node.attr))
            elif isinstance(node, ast.Name) and node.id in known:
                found.add(origin(*known[node.id]))
    return {(place, name) for place, name in found if place.startswith("opsq.")}


def origin(place: str, name: str) -> tuple[str, str]:
    """Where a name of a module is defined, and as what; a module as nothing of ours."""
    each = getattr(importlib.import_module(place), name, None) if place.startswith("opsq") else None
    if inspect.ismodule(each):
        return "", ""
    return (each.__module__, each.__qualname__) if inspect.isclass(each) else (place, name)


def exported() -> set[tuple[str, str]]:
    """All that public modules promise: where it is defined, and its name there."""
    found = set()
    for place, module in modules():
        known = origins(module.__name__)
        found |= {origin(*known.get(name, (place, name))) for name in public_names(module)}
    return found


# --- the page ---------------------------------------------------------------------------------------------------------


def reference() -> str:
    """The sections of the page: the package, its classes, its modules."""
    text = ".SH FUNCTIONS\n" + "".join(map(entry, functions(opsq)))
    own = [(kind, name) for kind, name in classes().items() if name.count(".") == 1]
    for kind, name in sorted(own, key=lambda each: (plain(each[1].removeprefix("opsq.")), each[1])):
        text += f".SH {roff(name)}\n{class_body(name, kind)}"
    for place, module in modules():
        if module is opsq:
            continue
        text += f".SH {roff(place)}\n{body((module.__doc__ or '').partition(chr(10) * 2)[0])}"
        text += "".join(map(entry, functions(module)))
        for name in public_names(module):
            each = getattr(module, name)
            if inspect.isclass(each) and classes()[each] == f"{place}.{name}":
                text += f".TP\n\\fB{name}\\fR\n{nested(class_body(f'{place}.{name}', each))}"
            elif not callable(each):
                text += f".TP\n\\fB{name}\\fR\n{sentence(re.sub(r'[a-z_.]+[.](?=[A-Z])', '', str(each)))}\n"
    return text


def functions(module: ModuleType) -> Iterator[Promised]:
    """The functions of a public module."""
    return (one for one in promised() if one.name.rpartition(".")[0] == module.__name__)


def class_body(name: str, kind: type) -> str:
    """What is said of a class: what it is, what it is made with, what it has."""
    own = list(members(name, kind))
    made = [one for one in own if one.name.endswith(".__init__")]
    if hasattr(kind, "__post_init__"):  # a struct that is made by hand, and looks at what it is made of
        made = [Promised(f"{name}.__init__", kind, "", is_property=False)]
    text = f"{signature(made[0], name.rpartition('.')[2])}\n.PP\n" if made else ""
    doc = inspect.cleandoc(kind.__doc__ or "")  # Python 3.13 has taken the indentation away already
    if kind.__name__ == "Consumer":  # whose arguments are those of `Queue.consumer`
        doc = re.sub(r" {4}(open_wire|is_polled): .*(?:\n|$)", "", doc)
    elif plain(kind.__name__) in MADE_BY_OTHERS:
        doc = re.sub(r"\n\nArgs:\n(?: {4}.*(?:\n|$))+", "\n", doc)
    text += body(doc.strip())
    if issubclass(kind, opsq.errors.OpsqError):
        text += f".PP\nCode {kind.code}, exit status {kind.exit_status}.\n"
    elif told := told_bases(kind):
        text += f".PP\nIt has all that `{classes()[told[0]]}` has.\n".replace("`", "")
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if fields and not made and "Attributes:" not in doc:
        text += f".PP\nFields: {', '.join(f'`{each}`' for each in fields)}.\n".replace("`", "")
    elif typing.is_typeddict(kind):
        shown = ", ".join(
            f"{key}: {getattr(each, '__forward_arg__', each)}" for key, each in kind.__annotations__.items()
        )
        text += f".PP\nKeywords: {sentence(shown)}.\n"
    return text + "".join(entry(one) for one in own if one not in made)


def entry(one: Promised) -> str:
    """A function, method or property with its docstring."""
    return f".TP\n{signature(one, one.name.rpartition('.')[2])}\n{nested(body(one.doc))}"


def signature(one: Promised, name: str) -> str:
    """How it is called: arguments with types and defaults, and what comes back."""
    waits = "await " if inspect.iscoroutinefunction(one.function) else ""
    found = inspect.signature(one.function)
    returned = (
        "" if found.return_annotation in ("None", None, found.empty) else f" → {shown_type(found.return_annotation)}"
    )
    if one.is_property:
        return f"\\fB{name}\\fR{roff(returned.replace(' →', ':'))}"
    words, is_keyword = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            words.append("*")
            is_keyword = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = "" if parameter.annotation is found.empty else f": {shown_type(parameter.annotation)}"
        default = (
            "" if parameter.default is found.empty else f" = {parameter.default!r}".replace(" = <factory>", " = …")
        )
        words.append(f"{stars}{parameter.name}{kind}{default}")
    return f"{waits}\\fB{name}\\fR{roff(f'({chr(32).join(word + chr(44) for word in words)[:-1]})')}{roff(returned)}"


def shown_type(annotation: object) -> str:
    """A type as the page has it: without the module, and a record of keywords by its name."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = re.sub(r"\bopsq\.[a-z_.]+\.(?=[A-Z])", "", text)
    return re.sub(r"\b(?:Unpack\[(?:\w+\.)?(\w+)\]|(?:new_submission|traces)\.(\w+))", r"\1\2", text)


def body(doc: str) -> str:
    """A docstring as roff; sections such as Args become lists."""
    text = ""
    for block in filter(None, doc.split("\n\n")):
        head, _, rest = block.partition("\n")
        if head in ("Args:", "Raises:", "Attributes:"):
            items = re.findall(r"^    (\S.*?): (.*(?:\n {8,}.*)*)", rest, re.MULTILINE)
            word = "raises " if head == "Raises:" else ""
            text += "".join(f".TP\n{word}\\fI{roff(name)}\\fR\n{sentence(about)}\n" for name, about in items)
        else:
            text += f".PP\n{sentence(block)}\n"
    return text.removeprefix(".PP\n")


def nested(text: str) -> str:
    """The text below an entry of a list: further paragraphs and lists are set in."""
    first, separator, rest = text.partition("\n.")
    return f"{first}\n.RS\n.{rest}.RE\n" if separator else text
