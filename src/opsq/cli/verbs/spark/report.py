"""The verb spark report: what the history says about waiting, running and fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.spark.job import Session
from opsq.cli.spark.report import Asked, write_report

if TYPE_CHECKING:
    pass
from opsq.cli.options.option import options


def report(caller: Caller, what: Asked = options(Asked), session: Session = options(Session)) -> None:
    """Tell what the history says: waiting and run times, throughput, retries, dead letters, how busy consumers were, what was fair."""
    write_report(caller, what, session)
