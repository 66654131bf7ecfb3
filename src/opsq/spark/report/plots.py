"""Plots as self-contained SVG: lines over time, and bars by name.

It must not know what it draws, nor refer to anything outside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777")
"""Those of Okabe and Ito, which colour-blind people can distinguish."""
_WIDTH = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 28, 12, 44
_HEIGHT = 280
_ROW = 30
_NAME_WIDTH = 180
_NAME_CHARACTERS = 26
_DAY_MS = 86_400_000
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)


class Series(NamedTuple):
    """A line: a name, and a value for each instant in milliseconds since 1970."""

    name: str
    points: Sequence[tuple[int, float]]


class Bar(NamedTuple):
    """A row of bars, one for each part."""

    name: str
    sizes: Sequence[float]


def lines(series: Sequence[Series], *, y_label: str, x_label: str = "time (UTC)") -> str:
    """Lines over time, with a legend if there are several; a point of a series with one is a dot."""
    instants = [at for one in series for at, _ in one.points]
    first, last = min(instants, default=0), max(instants, default=1)
    last = max(last, first + 1)
    ticks = nice_ticks(max((y for one in series for _, y in one.points), default=0.0))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(at: float) -> float:
        return _LEFT + (at - first) / (last - first) * wide

    def y(value: float) -> float:
        return _TOP + high - value / ticks[-1] * high

    parts = [_line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid") for tick in ticks]
    parts += [_text(_LEFT - 6, y(tick) + 4, _number(tick), "end") for tick in ticks]
    for at, text in _time_ticks(first, last):
        parts += [
            _line(x(at), _TOP + high, x(at), _TOP + high + 4, "axis"),
            _text(x(at), _TOP + high + 17, text, "middle"),
        ]
    parts += [
        _line(_LEFT, _TOP + high, _WIDTH - _RIGHT, _TOP + high, "axis"),
        _line(_LEFT, _TOP, _LEFT, _TOP + high, "axis"),
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        if len(one.points) == 1:
            [(at, value)] = one.points
            parts.append(f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>')
            continue
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in one.points)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>'
        )
    parts.append(_text(_LEFT + wide / 2, _HEIGHT - 6, x_label, "middle", "label"))
    parts.append(
        f'<text class="label" text-anchor="middle" transform="translate(14 {_TOP + high / 2:.0f}) '
        f'rotate(-90)">{escape(y_label)}</text>'
    )
    return _svg(_HEIGHT, parts) + (_legend([one.name for one in series]) if len(series) > 1 else "")


def bars(rows: Sequence[Bar], parts_names: Sequence[str], *, x_label: str, is_nested: bool = False) -> str:
    """Rows of bars by name; with a legend if they have several parts.

    Args:
        is_nested: draw growing parts, such as percentiles, over each other, the smallest on top; otherwise below each
            other.
    """
    ticks = nice_ticks(max((size for row in rows for size in row.sizes), default=0.0))
    wide, high = _WIDTH - _NAME_WIDTH - 60, _ROW * len(rows)

    def x(size: float) -> float:
        return _NAME_WIDTH + size / ticks[-1] * wide

    parts = [_line(x(tick), _TOP, x(tick), _TOP + high, "grid") for tick in ticks]
    parts += [_text(x(tick), _TOP + high + 16, _number(tick), "middle") for tick in ticks]
    for number, row in enumerate(rows):
        top, room = _TOP + number * _ROW + 4, _ROW - 8
        parts.append(_text(_NAME_WIDTH - 8, top + room / 2 + 4, shortened(row.name), "end", title=row.name))
        order = range(len(row.sizes))
        for part in reversed(order) if is_nested else order:
            thick = room if is_nested else room / len(row.sizes)
            inset = part_inset(part, len(row.sizes)) if is_nested else 0
            place = top + (inset if is_nested else part * thick)
            width = max(x(row.sizes[part]) - _NAME_WIDTH, 1)
            colour = COLOURS[part % len(COLOURS)]
            parts.append(
                f'<rect x="{_NAME_WIDTH}" y="{place:.1f}" width="{width:.1f}" height="{thick - 2 * inset:.1f}" '
                f'fill="{colour}">'
                f"<title>{escape(row.name)}: {escape(parts_names[part])} {_number(row.sizes[part])}</title></rect>"
            )
        parts.append(
            _text(x(max(row.sizes, default=0.0)) + 5, top + room / 2 + 4, _number(max(row.sizes, default=0.0)), "start")
        )
    parts.append(_line(_NAME_WIDTH, _TOP, _NAME_WIDTH, _TOP + high, "axis"))
    parts.append(_text(_NAME_WIDTH + wide / 2, _TOP + high + 36, x_label, "middle", "label"))
    return _svg(_TOP + high + _BOTTOM, parts) + (_legend(parts_names) if len(parts_names) > 1 else "")


def part_inset(part: int, parts_count: int) -> float:
    """How much thinner a nested bar is than the one below it, on each side."""
    return (parts_count - 1 - part) * 3.0


def nice_ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`: four to eight of them."""
    if not 1e-12 < most < math.inf:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= most / 4 * 0.75)
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def shortened(name: str) -> str:
    """A name that fits in front of its bar."""
    return name if len(name) <= _NAME_CHARACTERS else name[: _NAME_CHARACTERS - 1] + "…"


def _time_ticks(first_ms: int, last_ms: int) -> list[tuple[int, str]]:
    least_s = (last_ms - first_ms) / 1000 / 7
    step_ms = next(
        (step * 1000 for step in _TIME_STEPS_S if step >= least_s), math.ceil(least_s * 1000 / _DAY_MS) * _DAY_MS
    )
    form = "%m-%d" if step_ms >= _DAY_MS else "%H:%M" if step_ms >= 60_000 else "%H:%M:%S"
    ticks = []
    for at in range(-(-first_ms // step_ms) * step_ms, last_ms + 1, step_ms):
        is_midnight = at % _DAY_MS == 0
        ticks.append((at, time.strftime("%m-%d" if is_midnight else form, time.gmtime(at / 1000))))
    return ticks


def _number(value: float) -> str:
    if value == 0:
        return "0"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 10:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick", title: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title and title != text else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{tip}</text>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _legend(names: Sequence[str]) -> str:
    keys = (
        f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{"".join(keys)}</p>'
