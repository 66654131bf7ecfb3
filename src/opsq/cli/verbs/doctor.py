"""The verb doctor: what is wrong on this machine."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.output.daemon_documents import DoctorDocument, FindingShape
from opsq.errors import Conflict, OpsqError


def doctor(caller: Caller) -> None:
    """Look for problems on this machine, and say what to do about each; exits 5 if something is wrong."""
    from opsq.daemon.doctor import examine, examine_without

    try:
        settings = caller.settings
    except OpsqError as error:
        facts = examine_without(error)
    else:
        facts = examine(settings)
    found = [FindingShape(*fact) for fact in facts]
    rows = [("ok" if f.ok else "WRONG", f.check, f.detail, f.advice) for f in found]
    caller.table(("", "check", "found", "what to do"), rows)
    bad = [f.check for f in found if not f.ok]
    failure = Conflict(f"{len(bad)} of {len(found)} checks found something wrong: {', '.join(bad)}.") if bad else None
    caller.conclude(DoctorDocument(found), failure)
