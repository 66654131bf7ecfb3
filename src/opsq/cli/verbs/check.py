"""The verb check: whether the database is sound, also while no daemon runs."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.installation_documents import CheckDocument
from opsq.errors import DatabaseDamaged, Unreachable
from opsq.units import counted
from opsq.wire.messages import Check, Checked


def check(caller: Caller) -> None:
    """Check the database and its invariants, also while no daemon runs; exits 6 if something is damaged."""
    try:
        with LastingConnection(caller) as daemon:
            problems = daemon.call(Check(daemon.next_id()), Checked).problems
    except Unreachable as error:
        problems = _check_stopped(caller, error)
    caller.lines(problems)
    failure = DatabaseDamaged(
        f"The check found {counted(len(problems), 'problem')}.",
        hint="Keep a copy of the file; restore a backup.",
    )
    caller.conclude(CheckDocument(problems), failure if problems else None)
    caller.remark("No problems were found.")


def _check_stopped(caller: Caller, error: Unreachable) -> list[str]:
    """Check the file itself, if it is on this machine and nobody has it open."""
    from opsq.cli.stopped_queue import stopped_database
    from opsq.store.integrity import problems

    with stopped_database(caller, error) as database:
        return problems(database)
