"""Traces: the W3C context that work carries from its producer to its consumers, and OpenTelemetry's spans about both.

The context stands in the description of the content, which only producers and consumers read. Spans are made only where
the program has imported OpenTelemetry itself: this file must not import it, nor know who asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opsq.ids import SubmissionId, made_at
from opsq.version import __version__

if TYPE_CHECKING:
    from opsq.content.manifest import Content

TRACESTATE_LIMIT = 512
"""Characters of `tracestate` that are passed on, which is what W3C asks for; a longer one is left out."""
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_API = "opentelemetry.trace"
_SYSTEM = {"messaging.system": "opsq", "messaging.destination.name": "opsq"}

Span = Any
"""A span of OpenTelemetry."""


class TraceContext(NamedTuple):
    """What work belongs to, as the headers of W3C Trace Context have it."""

    traceparent: str
    tracestate: str = ""

    def as_fields(self) -> dict[str, str]:
        """The headers that there are."""
        fields = {"traceparent": self.traceparent}
        return fields | {"tracestate": self.tracestate} if self.tracestate else fields

    @property
    def variables(self) -> dict[str, str]:
        """The same for the environment of a program."""
        return {name.upper(): field for name, field in self.as_fields().items()}


_given: ContextVar[TraceContext | bool | None] = ContextVar("opsq_trace", default=False)
"""What `given` says; False: nothing."""


def read(fields: Mapping[str, str]) -> TraceContext | None:
    """The context in headers, by names in lower case; None where there is none, or none that W3C allows."""
    found = _PARENT.fullmatch(fields.get("traceparent", "").strip())
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    state = fields.get("tracestate", "").strip()
    is_passed_on = len(state) <= TRACESTATE_LIMIT and state.isascii() and state.isprintable()
    return TraceContext(f"00-{trace_id}-{parent_id}-{flags}", state if is_passed_on else "")


def current() -> TraceContext | None:
    """The context that belongs to what is submitted now.

    That which `given` says, else the current span of OpenTelemetry, else TRACEPARENT of the environment.
    """
    found = _given.get()
    if not isinstance(found, bool):
        return found
    return _of_span(_current_span()) or read(
        {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
    )


def of_headers(headers: Mapping[str, str]) -> TraceContext | None:
    """The context of an HTTP request: the span that instrumentation has made for it, else its headers."""
    return _of_span(_current_span()) or read(headers)


@contextlib.contextmanager
def given(context: TraceContext | None) -> Iterator[None]:
    """What is submitted inside belongs to this context, or to none."""
    token = _given.set(context)
    try:
        yield
    finally:
        _given.reset(token)


def forget_environment() -> None:
    """From now on what this process submits for others belongs to no trace of its own."""
    _given.set(None)


def carrying(content: Content) -> Content:
    """The content with the context that belongs to what is submitted now, if there is one."""
    from msgspec.structs import replace

    context = current()
    return content if context is None else replace(content, trace=tuple(context))


@lru_cache(maxsize=256)
def carried_by(content: bytes) -> TraceContext | None:
    """The context of a submission with this content, encoded; it was read by `read` before, or is read again."""
    from opsq.content.manifest import decode

    return of_content(decode(content))


def of_content(content: Content) -> TraceContext | None:
    """The context of a submission with this content."""
    return None if content.trace is None else read(dict(zip(TraceContext._fields, content.trace, strict=True)))


# --- spans ------------------------------------------------------------------------------------------------------------


def _current_span() -> Span | None:
    api = sys.modules.get(_API)
    return None if api is None else api.get_current_span()


def _of_span(span: Span | None) -> TraceContext | None:
    found = None if span is None else span.get_span_context()
    if found is None or not found.is_valid:
        return None
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return read({"traceparent": parent, "tracestate": found.trace_state.to_header()})


@contextlib.contextmanager
def sending() -> Iterator[Sending]:
    """A span around the hand-over of a submission, which is the current one inside; none without OpenTelemetry."""
    api: Any = sys.modules.get(_API)
    if api is None:
        yield Sending(None)
        return
    attributes = _SYSTEM | {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    tracer = api.get_tracer("opsq", __version__)
    with tracer.start_as_current_span("send opsq", kind=api.SpanKind.PRODUCER, attributes=attributes) as span:
        yield Sending(span)


class Sending(NamedTuple):
    """A hand-over."""

    span: Span | None

    def note(self, submission_id: int, chunks_count: int) -> None:
        """It has made this submission."""
        if self.span is not None:
            self.span.set_attribute("messaging.message.id", str(submission_id))
            self.span.set_attribute("messaging.batch.message_count", chunks_count)


class Processing:
    """A span from the moment that a consumer has a chunk to its verdict: of the producer's trace, and linked to it.

    Args:
        context: that the submission carries.
    """

    __slots__ = ("_span",)

    def __init__(self, context: TraceContext | None, submission_id: SubmissionId, index: int, attempt: int) -> None:
        api: Any = sys.modules[_API]
        parent, links = None, []
        if context is not None:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            parent = TraceContextTextMapPropagator().extract(context.as_fields())
            links = [api.Link(api.get_current_span(parent).get_span_context())]
        self._span: Span = api.get_tracer("opsq", __version__).start_span(
            "process opsq",
            parent,
            api.SpanKind.CONSUMER,
            _SYSTEM
            | {
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.message.id": f"{submission_id}/{index}",
                "opsq.attempt": attempt,
                "opsq.wait_s": max(time.time() - made_at(submission_id) / 1000, 0.0),
            },
            links,
        )

    @property
    def context(self) -> TraceContext | None:
        """Of the span itself."""
        return _of_span(self._span)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """It is the current span inside; an exception does not end it."""
        with sys.modules[_API].use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        ):
            yield

    def end(self, outcome: str, *, result_bytes: int | None = None, reason: str = "") -> None:
        """The verdict is given: `completed`, `failed` or `released`."""
        self._span.set_attribute("opsq.outcome", outcome)
        if result_bytes is not None:
            self._span.set_attribute("opsq.result_bytes", result_bytes)
        if outcome == "failed":
            api: Any = sys.modules[_API]
            self._span.set_attribute("error.type", "failed")
            self._span.set_status(api.Status(api.StatusCode.ERROR, reason[:1024]))
        self._span.end()


def flush() -> None:
    """Have the spans that have ended written, before the process ends without the steps of the interpreter."""
    api: Any = sys.modules.get(_API)
    if api is not None:
        getattr(api.get_tracer_provider(), "force_flush", bool)()


def is_tracing() -> bool:
    """Whether the program has OpenTelemetry."""
    return _API in sys.modules
