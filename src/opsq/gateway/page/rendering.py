"""Makes HTML of templates: every text that is put in is made printable and escaped.

It must not ask the daemon.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from opsq.documents import rule_text, strategy_text
from opsq.documents.readable import brief, readable
from opsq.documents.submission_text import backoff_text, ended, host_of, nth, pairs_text, span_of, span_text
from opsq.documents.submissions import ranges
from opsq.findings import held_back
from opsq.printable import printable
from opsq.units import format_instant, format_rate, format_roughly, format_span
from opsq.version import __version__

_CODE = re.compile(r"`([^`]+)`")
_LINES = "\n"


class Asset(NamedTuple):
    """A file that browsers keep: its name tells its content."""

    name: str
    content: bytes
    media_type: str


def _asset(name: str, media_type: str) -> Asset:
    content = (resources.files(__package__) / "static" / name).read_bytes()
    stem, _, ending = name.rpartition(".")
    return Asset(f"{stem}.{hashlib.sha256(content).hexdigest()[:16]}.{ending}", content, media_type)


STYLE = _asset("page.css", "text/css")
SCRIPT = _asset("page.js", "text/javascript")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def render(template: str, values: Mapping[str, object]) -> str:
    """A page."""
    return _environment.get_template(template).render(values)


def _shown(value: object) -> object:
    """What stands for a value: None is nothing, and text of others has no character that moves or hides any."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _address(path: str, /, **query: object) -> str:
    """A path of the page with a query; what is empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", [], False)}
    return f"{path}?{urlencode(given, doseq=True, errors='replace')}" if given else path


def _ago(wall_ms: int | None) -> Markup | str:
    """How long ago an instant was, or how far away it is; the instant itself is its tooltip."""
    if wall_ms is None:
        return ""
    away_s = (now_ms() - wall_ms) / 1000
    text = "now" if abs(away_s) < 1 else f"{format_span(away_s)} ago" if away_s > 0 else f"in {format_span(-away_s)}"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(format_instant(wall_ms), text)


def _moment(wall_ms: int | None) -> str:
    """An instant, to the second."""
    return "" if wall_ms is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(wall_ms // 1000))


def _sentence(text: str) -> Markup:
    """A sentence with its commands set off."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(printable(text)))))  # noqa: S704  # it is escaped


def _lines(text: str) -> Markup:
    """Text of a program, of which the line ends stay."""
    return Markup(escape(printable(readable(text), keep="\n\t")))  # noqa: S704


def _brief(text: str) -> Markup:
    """The same, short."""
    return Markup(escape(printable(brief(text), keep="\n\t")))  # noqa: S704


def _cut(text: str, characters: int = 160) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


_environment = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    finalize=_shown,
)
_environment.filters |= {
    "ago": _ago,
    "moment": _moment,
    "sentence": _sentence,
    "lines": _lines,
    "brief": _brief,
    "cut": _cut,
    "pairs": pairs_text,
    "exact": lambda metadata: msgspec.json.encode(metadata).decode(),
    "span": format_span,
    "span_text": span_text,
    "backoff": backoff_text,
    "rate": lambda per_s: format_rate(per_s, digits=3) if per_s else "",
    "roughly": format_roughly,
    "count": lambda number: f"{number:,}",
    "nth": nth,
    "chunks": lambda event: ranges(event.block * 64, event.mask),
    "host": host_of,
    "ran": span_of,
}
_environment.globals |= {
    "address": _address,
    "ended": ended,
    "held_back": held_back,
    "rules": rule_text,
    "strategies": strategy_text,
    "style": f"/assets/{STYLE.name}",
    "script": f"/assets/{SCRIPT.name}",
    "version": __version__,
}
