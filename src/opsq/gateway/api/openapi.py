"""Describes the endpoints of the JSON API as an OpenAPI 3.1 document, made of what they declare.

It must not be asked for each request: the document never changes while the gateway lives.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from opsq.documents.shape import Shape
from opsq.errors import NotPermitted, OpsqError, TooManyConnections, Unreachable, UsageError, VersionMismatch
from opsq.gateway.api.endpoint import EVENT_STREAM, JSON, Endpoint, is_list, takes_nothing
from opsq.gateway.connections import UnknownToken
from opsq.gateway.problems import MEDIA_TYPE, STATUSES, phrase
from opsq.version import __version__
from opsq.wire.roles import PERMITTED, ROLES

_ALWAYS = (UsageError, UnknownToken, NotPermitted, Unreachable, TooManyConnections, VersionMismatch)
_PLACES = {"path": "path", "query": "query", "headers": "header"}
_BINARY = {"type": "string", "format": "binary"}
_REFERENCE = "#/components/schemas/{name}"


class Problem(Shape):
    """What went wrong (RFC 9457); `code` is that of opsq-json(7), or `http` for what HTTP itself refuses."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""


def document(endpoints: Iterable[Endpoint], prefix: str) -> dict[str, Any]:
    """The OpenAPI document of some endpoints below a prefix."""
    endpoints = list(endpoints)
    kinds = [Problem, *_kinds(endpoints)]
    references, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schema_of = dict(zip(kinds, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(f"{prefix}{endpoint.path}", {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    bearer = {"type": "http", "scheme": "bearer", "description": "A token of `opsq token create`."}
    described: dict[str, Any] = _ecma(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "opsq",
                "version": __version__,
                "description": "A durable batch-work queue. The documents are those of opsq-json(7).",
            },
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": bearer}},
            "security": [{}, {"token": []}],
        }
    )
    return described


def _kinds(endpoints: Iterable[Endpoint]) -> list[Any]:
    """The types of all bodies and documents, each once."""
    found = {
        kind: None
        for endpoint in endpoints
        for part, kind in endpoint.hints.items()
        if part == "body" or (part == "return" and issubclass(kind, msgspec.Struct))
    }
    return list(found)


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    hints = endpoint.hints
    summary, _, rest = (inspect.getdoc(endpoint.handler) or "").partition("\n\n")
    roles = _roles(endpoint)
    whom = "Needs a token of any role." if len(roles) == len(ROLES) else f"Needs the role {' or '.join(roles)}."
    found: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": " ".join(summary.split()),
        "description": " ".join([*rest.split(), whom]),
        "parameters": [each for part, place in _PLACES.items() for each in _parameters(hints.get(part), place)],
        "responses": _responses(endpoint, schema_of),
        "x-opsq-roles": roles,
    }
    if "body" in hints:
        content = {JSON: {"schema": schema_of[hints["body"]]}}
        found["requestBody"] = {"required": not takes_nothing(hints["body"]), "content": content}
    elif endpoint.consumes:
        found["requestBody"] = {
            "required": endpoint.needs_body,
            "content": {each: {"schema": _read_as(each)} for each in endpoint.consumes},
        }
    return found


def _read_as(media_type: str) -> dict[str, Any]:
    """What a body is that no JSON is expected of."""
    if media_type != "multipart/form-data":
        return _BINARY
    properties = {"file": {"type": "array", "items": _BINARY}, "attachment": _BINARY}
    return {"type": "object", "properties": properties, "required": ["file"]}


def _roles(endpoint: Endpoint) -> list[str]:
    """The roles that may do everything that an endpoint asks."""
    return [role for role in ROLES if all(role in PERMITTED[request] for request in endpoint.asks)]


def _parameters(kind: Any, place: str) -> Iterator[dict[str, Any]]:
    if kind is None:
        return
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    for each in msgspec.structs.fields(kind):
        schema = properties[each.encode_name]
        if "anyOf" in schema:  # null: it is left out, which needs no type
            schema = next(one for one in schema["anyOf"] if one != {"type": "null"})
        found: dict[str, Any] = {"name": each.encode_name, "in": place, "required": each.required}
        found["description"] = schema.get("description", "")
        found["schema"] = {name: part for name, part in schema.items() if name != "description"}
        if is_list(each.type):
            found |= {"style": "form", "explode": True}
        yield found


def _responses(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    answer = endpoint.hints["return"]
    other = {"schema": _BINARY} if endpoint.produces != EVENT_STREAM else {}
    content = {endpoint.produces: {"schema": schema_of[answer]} if answer in schema_of else other}
    good = {"description": phrase(endpoint.status), "content": content}
    found: dict[str, Any] = {str(endpoint.status): good}
    for status in endpoint.statuses:
        found[str(status)] = {"description": phrase(status)} | ({"content": content} if status < 300 else {})
    codes: dict[int, set[str]] = {status: {"http"} for status in (408, 431)}
    errors: tuple[type[OpsqError], ...] = (*_ALWAYS, *endpoint.fails)
    for error in errors:
        codes.setdefault(_status(error), set()).add(error.code)
    if "body" in endpoint.hints or endpoint.consumes:
        codes |= {413: codes.get(413, set()) | {"http"}, 415: {"http"}}
    for status, names in sorted(codes.items()):
        found[str(status)] = {
            "description": f"{phrase(status)}: {', '.join(sorted(names))}",
            "content": {MEDIA_TYPE: {"schema": schema_of[Problem]}},
        }
    return found


def _status(error: type[OpsqError]) -> int:
    return next(STATUSES[kind] for kind in error.__mro__ if kind in STATUSES)


def _ecma(part: Any) -> Any:
    r"""The same with patterns as ECMA-262 has them, which knows no `\Z`, and descriptions on one line."""
    if isinstance(part, dict):
        return {name: _ecma_text(name, each) if isinstance(each, str) else _ecma(each) for name, each in part.items()}
    return [_ecma(each) for each in part] if isinstance(part, list) else part


def _ecma_text(name: str, text: str) -> str:
    if name == "pattern":
        return text.replace(r"\Z", "$")
    return re.sub(r"\s+", " ", text) if name == "description" else text
