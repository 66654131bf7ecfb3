"""Makes a report: exports the history if needed, has Spark compute it, and prints tables, JSON or a page of HTML.

It must not compute figures; they come from `opsq.spark.report.figures`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple, replace

from opsq.cli.caller import Caller
from opsq.cli.output import event_export
from opsq.cli.spark.job import Session, SparkJobs, opened
from opsq.cli.stopped_queue import asked
from opsq.content.output_file import open_output
from opsq.documents.asking import events
from opsq.errors import NotFound, UsageError
from opsq.options import values
from opsq.options.conditions import SINCE, UNTIL, EventConditions
from opsq.options.option import COUNT, duration, option, option_set
from opsq.spark.history_export import exported_place
from opsq.wire.messages import HistoryFilter

if TYPE_CHECKING:
    from opsq.spark.report.figures import Figures
    from opsq.spark.report.rows import ReportDocument

_FILE_ROWS = 1_000_000
_LOCAL_PARTITIONS = "8"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_REASON_CHARACTERS = 50


def _step(origin: str, text: str) -> int:
    step_s = duration(origin, text)
    if step_s < 1 or step_s != int(step_s):
        raise UsageError(f"{origin} {text}: give whole seconds, at least one.")
    return int(step_s)


@option_set
class Asked(NamedTuple):
    """What the report covers; each field is an option."""

    by: str = option("--by KEY", "Group by the values of this metadata key, or by `submission`.", default="submission")
    since: int | None = SINCE
    until: int | None = UNTIL
    from_: str | None = option(
        "--from DIR", "Read this folder of `opsq history export --format parquet`, not the queue."
    )
    step_s: int | None = option("--step D", "The length of a window of time; by default at most 60 cover all.", _step)
    html: str | None = option("--html FILE", "Write a page with plots as well, in one file.")
    limit: int = option("-n, --limit N", "How many values and consumers to show, largest first.", COUNT, 20)
    tables: bool = option("--tables", "Print tables even if stdout is not a terminal, instead of tab-separated lines.")


def write_report(caller: Caller, what: Asked, session: Session, jobs: SparkJobs | None = None) -> None:
    """Make the report; see `opsq.cli.verbs.spark.report`.

    Args:
        jobs: of a session that runs already; None: one is started as `session` says, and stopped.

    Raises:
        NotFound: nothing has happened in that time, or the folder holds no history.
    """
    where = EventConditions(since=what.since, until=what.until).as_filter(None)
    values.check_key(what.by)
    with (
        _folder(caller, what, where) as folder,
        contextlib.nullcontext(jobs) if jobs else opened(caller, session) as at_work,
    ):
        if session.master.startswith("local") and "spark.sql.shuffle.partitions" not in session.settings():
            at_work.spark.conf.set("spark.sql.shuffle.partitions", _LOCAL_PARTITIONS)  # results are small, tasks cost
        figures = at_work.run("computing", lambda: _figures(at_work, folder, where, what, what.step_s))
    if figures is None:
        raise NotFound("The history has no events of that time.", hint="`opsq history list` shows what there is.")
    if what.html is not None:
        from opsq.spark.report.page import page

        with open_output(what.html) as out:
            out.write(page(figures).encode())
    found = replace(figures.report, html=what.html)
    caller.document(found)
    if caller.is_rich or (what.tables and not caller.is_json):
        _draw(caller.drawn(), found)
    else:
        caller.lines(_plain(found))
    if what.by != "submission" and all(row.value is None for row in found.values):
        caller.remark(f"No submission of that time has the key {what.by!r}.")
    if what.html is not None:
        caller.remark(f"The page is in {what.html}.")


@contextlib.contextmanager
def _folder(caller: Caller, what: Asked, where: HistoryFilter) -> Iterator[str]:
    """A folder with the history in Parquet; a temporary one unless --from names one."""
    if what.from_ is not None:
        yield exported_place(what.from_)
        return
    with tempfile.TemporaryDirectory(prefix="opsq-report-") as folder:
        target = event_export.target(folder, "parquet", _FILE_ROWS, is_going_on=False)
        with asked(caller) as daemon, target, caller.progress("rows") as progress:
            task = progress.add_task("exporting", total=None) if progress else None
            for page in events(daemon, where):
                target.write(page.rows, event_export.Known(page.metadata, {}, page.titles))
                if progress:
                    progress.update(task, completed=target.rows_count)
        if not target.rows_count:
            raise NotFound("The history has no events of that time.", hint="`opsq history list` shows what there is.")
        yield folder


def _figures(jobs: SparkJobs, folder: str, where: HistoryFilter, what: Asked, step_s: int | None) -> Figures | None:
    from opsq.spark.report import load_history
    from opsq.spark.report.figures import gather

    history = load_history(jobs.spark, folder, from_ms=where.from_at, to_ms=where.to_at)
    return gather(history, what.by, limit=what.limit, step_s=step_s)


# --- tables -----------------------------------------------------------------------------------------------------------


def _plain(found: ReportDocument) -> list[str]:
    """A line per row, with tabs: its kind, and the fields of the JSON document in order; `-` for unknown values."""
    rows: list[tuple[str, Struct]] = [("all", replace(found.total, value=None))]
    rows += [("value", row) for row in found.values]
    rows += [("fairness", row) for row in found.fairness]
    rows += [("consumer", row) for row in found.consumers]
    rows += [("failure", row) for row in found.failures]
    rows += [("window", row) for row in found.throughput]
    lines = ["\t".join([kind, *map(_plain_field, astuple(row))]) for kind, row in rows]
    return [*lines, f"jain\t{_plain_field(found.jain)}"]


def _plain_field(field: object) -> str:
    if field is None or field == "":
        return "-"
    text = f"{field:.6g}" if isinstance(field, float) else str(field)
    return " ".join(text.split())


def _draw(caller: Caller, found: ReportDocument) -> None:
    """Tables that fit 80 columns."""
    from opsq.spark.report.page import first_line, load_cells, name_of, number, percent, rate, seconds, time_cells

    total = found.total
    step = seconds(float(found.step_s))
    caller.console.print(f"Completed per {step}: {_sparkline(found)}\n", markup=False, soft_wrap=True)
    names = [name_of(row.value) for row in found.values]
    summaries = [*zip(names, found.values, strict=True), ("all", total)]
    counts = [
        (
            name,
            row.completed,
            row.failed + row.lost,
            row.dead,
            percent(row.retry_rate),
            rate(row.per_s),
            seconds(row.busy_s),
        )
        for name, row in summaries
    ]
    columns = (found.by, "done", "failed", "dead", "retried", "rate", "busy")
    caller.table(columns, counts, title="Chunks", right=frozenset(columns[1:]))
    caller.console.print()
    times = [(name, *time_cells(row)) for name, row in summaries]
    columns = (found.by, "wait 50%", "90%", "99% ", "run 50%", "90%  ", "99%  ")
    caller.table(columns, times, title="Percentiles of waiting and run times", right=frozenset(columns[1:]))
    caller.console.print()
    shares = [
        (
            name_of(row.value),
            percent(row.service_share),
            percent(row.demand_share),
            seconds(row.entitled_s),
            number(row.satisfaction),
        )
        for row in found.fairness
    ]
    share_columns = (found.by, "of service", "of demand", "fair share", "satisfaction")
    title = f"Fairness: Jain's index {number(found.jain)}"
    caller.table(share_columns, shares, title=title, right=frozenset(share_columns[1:]))
    caller.console.print()
    consumers = [(row.consumer, row.completed, row.failed, *load_cells(row)) for row in found.consumers]
    columns = ("consumer", "done", "failed", "busy", "load", "peak", "used")
    caller.table(columns, consumers, title="Consumers", right=frozenset(columns[1:]))
    if found.failures:
        caller.console.print()
        kinds = [(row.kind, row.chunks, first_line(row.reason)[:_REASON_CHARACTERS]) for row in found.failures]
        caller.table(("ended by", "failed", "newest reason"), kinds, title="Failures", right=frozenset({"failed"}))
    for noun, shown, count in (("values", names, found.values_count), ("consumers", consumers, found.consumers_count)):
        if count > len(shown):
            caller.remark(f"The {len(shown)} largest of {count} {noun}; --limit shows more.")


def _sparkline(found: ReportDocument) -> str:
    from opsq.spark.report.page import filled

    heights = [height for _, height in filled(found, found.throughput, lambda window: float(window.completed))]
    most = max(heights, default=0.0)
    return "".join(_BLOCKS[-(-int(height * 8) // int(most)) if most else 0] for height in heights[-64:])
