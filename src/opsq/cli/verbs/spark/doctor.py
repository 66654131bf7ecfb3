"""The verb spark doctor: whether Spark can be used from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.spark.job import Session

if TYPE_CHECKING:
    pass
from opsq.cli.options.option import options


def doctor(caller: Caller, session: Session = options(Session)) -> None:
    """Look whether Spark can be used from here: versions, Java, ports, and one row to the daemon and back; exits 5 if not."""
    from opsq.cli.spark.doctor import examine

    examine(caller, session)
