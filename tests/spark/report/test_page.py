"""The page of the report: whole, safe, and in need of nothing; and what is drawn on it."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsq.spark.report.figures import Figures
from opsq.spark.report.page import page, percent, rate, seconds
from opsq.spark.report.plots import Bar, Series, bars, lines, nice_ticks
from opsq.spark.report.rows import (
    ReportConsumer,
    ReportDocument,
    ReportFailure,
    ReportShare,
    ReportSummary,
    ReportWindow,
)
from opsq.units import format_instant
from opsq.version import __version__

BEGIN = 1_772_366_400_000
SPAN = (format_instant(BEGIN), format_instant(BEGIN + 600_000))
HOSTILE = "<script>alert('x')</script>&\"größe"


def summary(value: str | None, completed: int = 900) -> ReportSummary:
    counts = (completed, 7, 3, 2, 1, 1)
    times = (3.0, 60.0, 600.0, 0.25, 1.5, 9.0)
    return ReportSummary(value, *counts, 0.0125, 1.01, 0.002, 1234.5, *SPAN, completed / 600, *times)


def figures(*names: str | None) -> Figures:
    windows = [
        ReportWindow("all", format_instant(BEGIN + 60_000 * number), 90 * number, number % 3, 0, 1.5 * number)
        for number in range(1, 11)
    ]
    report = ReportDocument(
        by="tenant",
        rows=1234,
        first_at=SPAN[0],
        last_at=SPAN[1],
        step_s=60,
        total=summary("all", 54_321),
        values=[summary(name) for name in names],
        values_count=len(names) + 5,
        throughput=windows,
        consumers=[ReportConsumer("host-1/7", *SPAN, 900, 10, 480.0, 0.8, 1.0, 0.8)],
        consumers_count=1,
        fairness=[ReportShare(name, 10.0, 30.0, 12.5, 0.25, 0.5, 0.8) for name in names],
        jain=0.87,
        failures=[ReportFailure("exit 3", 7, f"{HOSTILE}\nmore"), ReportFailure("lost", 3, "")],
    )
    return Figures(report, [replace(window, value=name) for name in names[:6] for window in windows[::2]])


def svgs(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def texts(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_page_is_one_file_that_asks_nobody_for_anything():
    text = page(figures("acme", "zeta", None))
    assert re.findall(r"(?i)<(?:script|link|img|iframe|object)\b|\bsrc=|\bhref=|url\(|@import", text) == []
    assert set(re.findall(r"https?://[^\s\"<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert f'<p class="note">Made by opsq {__version__}.</p>' in text


def test_page_tells_the_headline_numbers_and_has_the_plots_with_labels_and_units():
    text = page(figures("acme", "zeta", None))
    for told in (
        "54,321",
        "0.87",
        "80 %",
        "1.2 %",
        "2026-03-01 12:00:00",
        "1,234 events",
        "(none)",
        "The 3 largest of 8.",
    ):
        assert told in text
    labels = [
        {"completed chunks per second", "time (UTC)"},
        {"seconds"},
        {"percent"},
        {"chunks per second", "time (UTC)"},
        {"failed attempts"},
    ]
    assert all(wanted <= set(texts(svg)) for wanted, svg in zip(labels, svgs(text), strict=True))


def test_names_and_reasons_cannot_break_the_page():
    text = page(figures(HOSTILE))
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;größe" in text
    assert len(svgs(text)) == 5


def test_history_without_failures_says_so():
    without = replace(figures("acme").report, failures=[], total=replace(summary("all"), dead=0))
    assert "No attempt failed." in page(Figures(without, []))


def test_history_of_which_nothing_is_known_has_a_page_too():
    nothing = ReportSummary("all", *[0] * 6, None, None, None, 0.0, *[None] * 9)
    empty = ReportDocument("tenant", 1, SPAN[0], SPAN[0], 1, nothing, [nothing], 1, [], [], 0, [], None, [])
    assert len(svgs(page(Figures(empty, [])))) == 1


@given(st.floats(0, 1e15, allow_nan=False))
def test_ticks_are_few_and_reach_what_is_drawn(most: float):
    ticks = nice_ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] >= most * (1 - 1e-8)
    assert 2 <= len(ticks) <= 9


@given(st.lists(st.tuples(st.integers(0, 10**13), st.floats(0, 1e9)), max_size=30))
def test_points_lie_within_the_plot(points: list[tuple[int, float]]):
    svg = ET.fromstring(lines([Series("all", sorted(points))], y_label="y"))
    drawn = [
        pair.split(",")
        for line in svg.iter("{http://www.w3.org/2000/svg}polyline")
        for pair in line.get("points", "").split()
    ]
    assert len(drawn) == (len(points) if len(points) != 1 else 0)
    assert all(0 <= float(x) <= 760 and 0 <= float(y) <= 280 for x, y in drawn)


def test_bars_are_as_long_as_their_numbers_and_say_them():
    drawn = bars([Bar("a", [10.0, 20.0]), Bar("b", [40.0, 5.0])], ("x", "y"), x_label="seconds")
    svg = ET.fromstring(drawn.partition("<p")[0])
    rects = [(float(rect.get("width", "0")), rect[0].text) for rect in svg.iter("{http://www.w3.org/2000/svg}rect")]
    unit = rects[0][0] / 10
    assert [round(width / unit) for width, _ in rects] == [10, 20, 40, 5]
    assert [tip for _, tip in rects] == ["a: x 10", "a: y 20", "b: x 40", "b: y 5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0s"), (0.0004, "<1ms"), (0.25, "250ms"), (3.5, "3.5s"), (90.0, "1m 30s"), (7200.0, "2h")],
)
def test_lengths_of_time_are_told_in_their_unit(value: float | None, text: str):
    assert seconds(value) == text


def test_shares_and_rates_are_told_in_few_digits():
    assert [percent(value) for value in (None, 0.0, 0.004, 0.126, 1.0)] == ["–", "0 %", "0.4 %", "13 %", "100 %"]
    assert [rate(value) for value in (None, 0.0, 0.01, 5.0, 12_345.6)] == ["–", "0/h", "36/h", "5/s", "12,346/s"]
