"""Plots p50 and p99 against the size of the backlog, from a stored result, as SVG and PNG.

It measures nothing and judges nothing: `strategies` does, and `backlog` for the plot beside a rival. Run it with the
path of a result's JSON file to draw it again.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_PANEL_WIDTH, _PANEL_HEIGHT = 300, 210
_LEFT, _TOP, _RIGHT, _BOTTOM = 46, 44, 12, 30
_HEAD, _FOOT = 64, 28
_LOW_S, _HIGH_S = 1e-5, 1e-2
_FONT = "font-family='Helvetica, Arial, sans-serif'"
_OURS, _RIVAL = "stroke='#1b6ca8' stroke-width='2'", "stroke='#c2571a' stroke-width='2'"
_DASHED = "stroke-dasharray='5,3'"


class Curve(NamedTuple):
    """The medians of one strategy, by the size of the backlog; its label says whose, and whether p50 or p99."""

    label: str
    points: list[tuple[int, float]]


class Plot(NamedTuple):
    """One picture: which rows it is made of, and how it looks."""

    suffix: str
    title: str
    row: str
    """Matches what a row measures; groups: the strategy, and p50 or p99."""
    columns: int
    styles: dict[str, str]
    """By label."""
    legend: tuple[str, ...]


PLOTS = (
    Plot(
        "",
        "A reserve of one chunk, by strategy and backlog",
        r"(.+) at \S+ against \S+ chunks: (p50|p99)",
        5,
        {"p50": _OURS, "p99": f"{_RIVAL} {_DASHED}"},
        (
            "One chunk a call, one in a hundred",
            "given back, fronts warm; processor",
            "time of the engine. Both axes are",
            "logarithmic and alike everywhere.",
            "",
            "Opsqueue publishes for its fair",
            "reserve: 0.25 ms at 100 chunks, 6 ms",
            "at 4.5 million, 220 ms with 200,000",
            "submissions (another machine).",
        ),
    ),
    Plot(
        "-backlog",
        "A reserve of one chunk against the backlog",
        r"(.+) behind \S+ chunks: (p50|p99)",
        2,
        {
            "p50": _OURS,
            "p99": f"{_OURS} {_DASHED}",
            "p50, row per chunk": _RIVAL,
            "p99, row per chunk": f"{_RIVAL} {_DASHED}",
        },
        (
            "Submissions of 1000 chunks, forty",
            "chunks held, one in a hundred given",
            "back; processor time. The rival keeps",
            "a row per chunk, with Opsqueue's",
            "queries.",
        ),
    ),
)


def curves_of(rows: list[dict[str, Any]], plot: Plot) -> dict[str, list[Curve]]:
    """By strategy, whatever rows have samples of several sizes, in the order of the table."""
    found: dict[str, list[Curve]] = {}
    for row in rows:
        match = re.fullmatch(plot.row, row["what"])
        if match is None:
            continue
        points: dict[str, list[tuple[int, float]]] = {}
        for name, samples in row["samples"].items():
            size = re.fullmatch(r"([0-9.e+]+) chunks(.*)", name)
            if size is not None:
                at = (int(float(size[1])), statistics.median(samples))
                points.setdefault(match[2] + size[2], []).append(at)
        for label, of_label in points.items():
            if len(of_label) >= 3:
                found.setdefault(match[1], []).append(Curve(label, sorted(of_label)))
    return found


def draw(plot: Plot, curves: dict[str, list[Curve]], date: str, machine: str) -> str:
    """The SVG; both axes are logarithmic, and alike in all panels."""
    lines = -(-(len(curves) + 1) // plot.columns)
    width, height = plot.columns * _PANEL_WIDTH, _HEAD + lines * _PANEL_HEIGHT + _FOOT
    sizes = sorted({size for of_strategy in curves.values() for curve in of_strategy for size, _ in curve.points})
    parts = [
        (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}'"
            f" width='{width}' height='{height}' {_FONT}>"
        ),
        f"<rect width='{width}' height='{height}' fill='white'/>",
        _text(16, 30, f"{plot.title}, {date}", 20 if plot.columns > 2 else 16, weight="bold"),
        _text(16, 52, machine, 12 if plot.columns > 2 else 8, "#555"),
    ]
    for number, (strategy, of_strategy) in enumerate(curves.items()):
        parts += _panel(plot, *_place(plot, number), strategy, of_strategy, sizes)
    parts += _legend(plot, *_place(plot, len(curves)))
    parts.append(_text(width / 2, height - 10, "chunks in the backlog", 13, "#333", anchor="middle"))
    return "\n".join([*parts, "</svg>", ""])


def write(stem: Path, rows: list[dict[str, Any]], date: str, machine: str) -> list[Path]:
    """Write an .svg for each plot that the rows are enough for, and beside it a .png where something can convert."""
    paths = []
    for plot in PLOTS:
        curves = curves_of(rows, plot)
        if curves:
            paths.append(stem.with_name(f"{stem.name}{plot.suffix}.svg"))
            paths[-1].write_text(draw(plot, curves, date, machine), encoding="utf-8")
            _convert(paths[-1])
    return paths


def _convert(path: Path) -> None:
    png = path.with_suffix(".png")
    for command in (
        ["rsvg-convert", "-o", str(png), str(path)],
        ["magick", str(path), str(png)],
        ["convert", str(path), str(png)],
    ):
        if shutil.which(command[0]) and subprocess.run(command, check=False).returncode == 0:
            return
    print("no PNG was made: neither rsvg-convert nor ImageMagick is installed and does it", file=sys.stderr)


def _place(plot: Plot, number: int) -> tuple[int, int]:
    return number % plot.columns * _PANEL_WIDTH, _HEAD + number // plot.columns * _PANEL_HEIGHT


def _panel(plot: Plot, left: int, top: int, strategy: str, curves: list[Curve], sizes: list[int]) -> list[str]:
    name, _, text = (strategy, "", "") if "(" in strategy.split(", ", maxsplit=1)[0] else strategy.partition(", ")
    parts = [_text(left + _LEFT, top + 16, name, 13, weight="bold")]
    if text:
        parts.append(_text(left + _LEFT, top + 31, text if len(text) < 52 else f"{text[:50]}…", 9, "#555"))
    bottom = top + _PANEL_HEIGHT - _BOTTOM
    for decade in range(round(math.log10(_LOW_S)), round(math.log10(_HIGH_S)) + 1):
        y = _y(top, 10.0**decade)
        parts.append(f"<path d='M{left + _LEFT},{y:.1f} L{left + _PANEL_WIDTH - _RIGHT},{y:.1f}' stroke='#ddd'/>")
        parts.append(
            _text(
                left + _LEFT - 5,
                y + 4,
                {-5: "10 µs", -4: "100 µs", -3: "1 ms", -2: "10 ms"}[decade],
                10,
                "#555",
                anchor="end",
            )
        )
    for size in sizes:
        x = _x(left, size, sizes)
        parts.append(f"<path d='M{x:.1f},{_y(top, _HIGH_S):.1f} L{x:.1f},{bottom}' stroke='#eee'/>")
        parts.append(_text(x, bottom + 14, f"10{_raised(round(math.log10(size)))}", 10, "#555", anchor="middle"))
    for curve in curves:
        at = [(_x(left, size, sizes), _y(top, seconds)) for size, seconds in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        parts.append(f"<polyline points='{line}' fill='none' {plot.styles[curve.label]}/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2' fill='none' {plot.styles[curve.label]}/>" for x, y in at]
    return parts


def _legend(plot: Plot, left: int, top: int) -> list[str]:
    parts = []
    for number, (label, style) in enumerate(plot.styles.items()):
        x, y = left + _LEFT, top + 14 + number * 18
        parts.append(f"<path d='M{x},{y} L{x + 34},{y}' {style}/>")
        parts.append(_text(x + 40, y + 4, label, 12))
    down = top + 22 + len(plot.styles) * 18
    return parts + [
        _text(left + _LEFT, down + number * 16, line, 12, "#333") for number, line in enumerate(plot.legend)
    ]


def _x(left: int, size: int, sizes: list[int]) -> float:
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    return left + _LEFT + 12 + (math.log10(size) - low) / (high - low) * (_PANEL_WIDTH - _LEFT - _RIGHT - 24)


def _y(top: int, seconds: float) -> float:
    low, high = math.log10(_LOW_S), math.log10(_HIGH_S)
    share = (math.log10(min(max(seconds, _LOW_S), _HIGH_S)) - low) / (high - low)
    return top + _PANEL_HEIGHT - _BOTTOM - share * (_PANEL_HEIGHT - _TOP - _BOTTOM)


def _raised(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _text(
    x: float, y: float, text: str, size: int, colour: str = "#111", *, anchor: str = "start", weight: str = "normal"
) -> str:
    style = f"font-size='{size}' fill='{colour}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"


def main() -> None:
    """Draw a stored result again."""
    from harness.machine import Machine

    if len(sys.argv) != 2:
        raise SystemExit("usage: plot.py RESULT.json")
    stored_at = Path(sys.argv[1])
    stored = json.loads(stored_at.read_text(encoding="utf-8"))
    paths = write(stored_at.with_suffix(""), stored["rows"], stored["date"], Machine(**stored["machine"]).line)
    if not paths:
        raise SystemExit(f"{stored_at} has no rows of several sizes")
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
