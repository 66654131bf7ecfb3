"""The verb doctor: what is wrong on this machine, or would be for a job of cron."""

from __future__ import annotations

import os

from opsq.cli.caller import Caller
from opsq.cli.output.findings import conclude_findings
from opsq.cli.output.installation_documents import FindingShape
from opsq.daemon.doctor_access import Fact
from opsq.errors import OpsqError, UsageError
from opsq.options.option import argument, option


def doctor(
    caller: Caller,
    programs: list[str] = argument("[PROGRAM...]", "With --cron: the programs that the job runs."),
    cron: bool = option("--cron", "Look instead at what a job of cron would lack, compared with this shell."),
) -> None:
    """Look for problems on this machine, and say what to do about each; exits 5 if something is wrong."""
    if programs and not cron:
        raise UsageError(f"opsq doctor {programs[0]}: programs are looked at with --cron only.")
    found = [FindingShape(*fact) for fact in (_of_cron(caller, programs) if cron else _of_machine(caller))]
    conclude_findings(caller, found)


def _of_machine(caller: Caller) -> list[Fact]:
    from opsq.daemon.doctor import examine, examine_without

    try:
        settings = caller.settings
    except OpsqError as error:
        return examine_without(error)
    return examine(settings)


def _of_cron(caller: Caller, programs: list[str]) -> list[Fact]:
    from opsq.cli.cron_environment import examine

    return examine(caller, programs, os.environ)
