"""The verb spark report: what the history says about waiting, running and fairness."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.spark.job import Session
from opsq.cli.spark.report_tables import Asked, write_report
from opsq.options.option import options


def report(caller: Caller, what: Asked = options(Asked), session: Session = options(Session)) -> None:
    """Report what the history shows: waiting and run times, throughput, retries, dead chunks, load and fairness."""
    write_report(caller, what, session)
