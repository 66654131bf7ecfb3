"""The report as one self-contained page of HTML: figures, plots, tables, and what the words mean.

It must not compute figures; they come from `figures`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from html import escape

from opsq.spark.report.figures import DRAWN_COUNT, Figures
from opsq.spark.report.plots import Bar, Series, bars, lines
from opsq.spark.report.rows import ReportConsumer, ReportDocument, ReportShare, ReportSummary, ReportWindow
from opsq.units import format_instant, format_span
from opsq.version import __version__

NO_VALUE = "(none)"
"""The name of submissions without the key in their metadata."""
_BARS_COUNT = 12

_STYLE = """
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;color:#1a1a1a;background:#fff;
max-width:860px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}
h2{font-size:1.15rem;margin:2.2rem 0 .3rem;border-bottom:1px solid #ccc;padding-bottom:.2rem}
p{margin:.3rem 0}.when,.note{color:#444}.note{font-size:.9rem}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:.6rem;margin:1.2rem 0}
.tile{border:1px solid #bbb;border-radius:6px;padding:.5rem .7rem}
.tile b{display:block;font-size:1.45rem;line-height:1.3}
.tile span{font-size:.82rem;color:#333}
svg{width:100%;height:auto;display:block;margin-top:.4rem}svg text{fill:#1a1a1a;font-size:12px;font-family:inherit}
svg .label{font-size:13px}svg .grid{stroke:#ddd}svg .axis{stroke:#333}
.legend{font-size:.85rem}.legend span{margin-right:1.1rem;white-space:nowrap}
.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.35rem;vertical-align:-.08rem;
print-color-adjust:exact}
table{border-collapse:collapse;width:100%;font-size:.85rem;margin:.6rem 0}
th,td{padding:.2rem .5rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}
th:first-child,td:first-child,.text{text-align:left}td:first-child,td.text{white-space:normal;overflow-wrap:anywhere}
@media print{body{margin:0;max-width:none;font-size:11pt}section,.tiles,tr{break-inside:avoid}h2{break-after:avoid}}
@media (max-width:640px){.tiles{grid-template-columns:repeat(2,1fr)}}
"""


def page(figures: Figures, title: str = "Report of the queue") -> str:
    """The whole page."""
    report = figures.report
    parts = [
        f"<h1>{escape(title)}</h1>",
        _when(report),
        _tiles(report),
        _throughput(report, figures.drawn),
        _waiting(report),
        _fairness(report),
        _failures(report),
        _consumers(report),
        _table_of_values(report),
        _WORDS,
        f'<p class="note">Made by opsq {escape(__version__)}.</p>',
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def name_of(value: str | None) -> str:
    """A value as people read it."""
    return NO_VALUE if value is None else value or '""'


def seconds(value: float | None) -> str:
    """A duration for people, also a short one; – if it is not known."""
    if value is None:
        return "–"
    if 0 < value < 1:
        return f"{value * 1000:.3g}ms" if value >= 0.001 else "<1ms"
    return format_span(value)


def percent(value: float | None) -> str:
    """A share."""
    if value is None:
        return "–"
    return f"{value * 100:.0f} %" if value in {0, 1} or value >= 0.1 else f"{value * 100:.2g} %"


def number(value: float | None) -> str:
    """A number with two decimals; – if it is not known."""
    return "–" if value is None else f"{value:.2f}"


def rate(value: float | None) -> str:
    """Chunks per second, or per hour if there are few."""
    if value is None:
        return "–"
    return f"{value:,.3g}/s" if 1 <= value < 1000 else f"{value:,.0f}/s" if value >= 1 else f"{value * 3600:.3g}/h"


def time_cells(row: ReportSummary) -> list[str]:
    """The percentiles of waiting times, then of run times."""
    waits = (row.wait_p50_s, row.wait_p90_s, row.wait_p99_s)
    return [seconds(length) for length in (*waits, row.run_p50_s, row.run_p90_s, row.run_p99_s)]


def load_cells(row: ReportConsumer) -> list[str]:
    """How long a consumer was busy, its mean and peak load, and its utilisation."""
    return [seconds(row.busy_s), number(row.load), number(row.peak_load), percent(row.utilisation)]


# --- sections ---------------------------------------------------------------------------------------------------------


def _when(report: ReportDocument) -> str:
    span = format_span((_wall_ms(report.last_at) - _wall_ms(report.first_at)) / 1000)
    instants = f"{_instant(report.first_at)} to {_instant(report.last_at)} (UTC)"
    return f'<p class="when">{instants}, {span}; {report.rows:,} events.</p>'


def _tiles(report: ReportDocument) -> str:
    total = report.total
    used_s = [consumer.utilisation for consumer in report.consumers if consumer.utilisation is not None]
    tiles = [
        (f"{total.completed:,}", "chunks completed"),
        (rate(total.per_s), "throughput, from the first start to the last end"),
        (seconds(total.wait_p50_s), f"waiting, median; 99 of 100 waited at most {seconds(total.wait_p99_s)}"),
        (seconds(total.run_p50_s), f"run time, median; 99 of 100 took at most {seconds(total.run_p99_s)}"),
        (percent(total.retry_rate), "of the chunks needed more than one attempt"),
        (f"{total.dead:,}", f"dead letters, {percent(total.dead_rate)} of what ended"),
        (
            percent(sum(used_s) / len(used_s) if used_s else None),
            f"mean utilisation of {_plural(len(used_s), 'consumer')}",
        ),
        (number(report.jain), f"fairness by {report.by} (Jain's index; 1 is fair)"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles)
        + "</div>"
    )


def _throughput(report: ReportDocument, drawn: Sequence[ReportWindow]) -> str:
    series = [Series("all", filled(report, report.throughput, lambda window: window.per_s))]
    names = list(dict.fromkeys(window.value for window in drawn))
    if report.values_count > 1:
        series += [
            Series(
                name_of(name), filled(report, [one for one in drawn if one.value == name], lambda window: window.per_s)
            )
            for name in names
        ]
    note = f"Windows of {format_span(report.step_s)}."
    if report.values_count > DRAWN_COUNT:
        note += f" Of {report.values_count:,} the {DRAWN_COUNT} with the most chunks have a line of their own."
    return _section("Throughput", lines(series, y_label="completed chunks per second"), note)


def _waiting(report: ReportDocument) -> str:
    rows = [
        Bar(name_of(summary.value), [summary.wait_p50_s, summary.wait_p90_s or 0.0, summary.wait_p99_s or 0.0])
        for summary in report.values[:_BARS_COUNT]
        if summary.wait_p50_s is not None
    ]
    names = ("half waited at most", "9 of 10", "99 of 100")
    note = "From when a chunk might be handed out until it was. " + _cut(report.values_count, len(rows))
    return _section(
        f"Waiting time by {report.by}", bars(rows, names, x_label="seconds", is_nested=True) if rows else "", note
    )


def _fairness(report: ReportDocument) -> str:
    found = report.fairness[:_BARS_COUNT]
    rows = [
        Bar(name_of(share.value), [(share.service_share or 0.0) * 100, (share.demand_share or 0.0) * 100])
        for share in found
    ]
    note = (
        "A value served in proportion to its demand has two bars of equal length. Satisfaction is actual ÷ fair share; "
        f"Jain's index over it is {number(report.jain)}. " + _cut(report.values_count, len(rows))
    )
    plot = bars(rows, ("share of service", "share of demand"), x_label="percent") if rows else ""

    def cells(share: ReportShare) -> list[str]:
        wanted = (seconds(share.service_s), seconds(share.demand_s), seconds(share.entitled_s))
        return [
            name_of(share.value),
            *wanted,
            percent(share.service_share),
            percent(share.demand_share),
            number(share.satisfaction),
        ]

    columns = (report.by, "service", "demand", "fair share", "of service", "of demand", "satisfaction")
    return _section(f"Fairness by {report.by}", plot + _table(columns, [cells(share) for share in found]), note)


def _failures(report: ReportDocument) -> str:
    if not report.failures and not report.total.dead:
        return _section("Failures", "<p>No attempt failed.</p>", "")
    series = [
        Series("failed attempts", filled(report, report.throughput, lambda window: window.failed / report.step_s)),
        Series("deaths", filled(report, report.throughput, lambda window: window.dead / report.step_s)),
    ]
    rows = [Bar(failure.kind, [failure.chunks]) for failure in report.failures[:_BARS_COUNT]]
    kinds = [[failure.kind, f"{failure.chunks:,}", first_line(failure.reason)] for failure in report.failures]
    plots = lines(series, y_label="chunks per second") + (
        bars(rows, ("attempts",), x_label="failed attempts") if rows else ""
    )
    return _section("Failures", plots + _table(("ended by", "attempts", "newest reason"), kinds, texts={0, 2}), "")


def _consumers(report: ReportDocument) -> str:
    rows = [
        [one.consumer or NO_VALUE, f"{one.completed:,}", f"{one.failed:,}", *load_cells(one)]
        for one in report.consumers
    ]
    columns = ("consumer", "completed", "failed", "busy", "mean load", "peak load", "utilisation")
    return _section("Consumers", _table(columns, rows), _cut(report.consumers_count, len(rows)))


def _table_of_values(report: ReportDocument) -> str:
    def cells(name: str, summary: ReportSummary) -> list[str]:
        counts = [f"{count:,}" for count in (summary.completed, summary.failed + summary.lost, summary.dead)]
        return [name, *counts, percent(summary.retry_rate), rate(summary.per_s), *time_cells(summary)]

    rows = [cells(name_of(summary.value), summary) for summary in report.values] + [cells("all", report.total)]
    columns = (report.by, "done", "failed", "dead", "retried", "rate", "wait 50", "90", "99", "run 50", "90", "99")
    return _section(f"By {report.by}", _table(columns, rows), _cut(report.values_count, len(report.values)))


_WORDS = """<section><h2>What the words mean</h2>
<p class="note"><b>Chunk</b>: a piece of work that is handed out as a whole. <b>Attempt</b>: one try at it; it fails
if the program fails or its consumer is gone. <b>Dead letter</b>: a chunk whose attempts are used up.
<b>Retried</b>: of the chunks that ended, those that needed more than one attempt. <b>Wait 50, 90, 99</b>:
percentiles of the waiting time. <b>Service</b>: run time of programs. <b>Demand</b>: service, plus what waiting
chunks could have used. <b>Fair share</b>: no value gets more than it can use, and the rest is shared equally by
those that can use more (max-min fairness), window by window. <b>Jain's index</b>: (Σx)² ÷ (n·Σx²) of the
satisfactions x: 1 if all are equal, 1/n if one has everything. <b>Load</b>: chunks at a time. <b>Utilisation</b>:
mean load ÷ peak load.</p></section>"""


# --- parts ------------------------------------------------------------------------------------------------------------


def filled(
    report: ReportDocument, windows: Sequence[ReportWindow], height: Callable[[ReportWindow], float]
) -> list[tuple[int, float]]:
    """A point for each window from first to last: 0 where nothing ended."""
    step_ms = report.step_s * 1000
    found = {window.window_at: height(window) for window in windows}
    return [
        (at, found.get(format_instant(at), 0.0))
        for at in range(_wall_ms(report.first_at) // step_ms * step_ms, _wall_ms(report.last_at) + 1, step_ms)
    ]


def first_line(reason: str) -> str:
    """The part of a reason that fits a row of a table."""
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "")
    return line if len(line) <= 200 else line[:199] + "…"


def _section(title: str, body: str, note: str) -> str:
    note_html = f'<p class="note">{escape(note.strip())}</p>' if note.strip() else ""
    return f"<section><h2>{escape(title)}</h2>{note_html}{body}</section>"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], texts: set[int] | frozenset[int] = frozenset({0})
) -> str:
    def cell(tag: str, position: int, text: str) -> str:
        kind = ' class="text"' if position in texts else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", position, text) for position, text in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(cell("td", position, text) for position, text in enumerate(row)) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cut(all_count: int, shown_count: int) -> str:
    return f"The {shown_count} largest of {all_count:,}." if all_count > shown_count else ""


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _instant(text: str) -> str:
    return text[:19].replace("T", " ")


def _wall_ms(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)
