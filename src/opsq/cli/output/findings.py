"""What a doctor has found, as a table, a document and an exit status.

It must not look for anything.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.output.installation_documents import DoctorDocument, FindingShape
from opsq.errors import Conflict


def conclude_findings(caller: Caller, found: list[FindingShape]) -> None:
    """Show what was found; exits 5 if something is wrong."""
    rows = [("ok" if each.ok else "WRONG", each.check, each.detail, each.advice) for each in found]
    caller.table(("", "check", "found", "what to do"), rows)
    bad = [each.check for each in found if not each.ok]
    failure = Conflict(f"{len(bad)} of {len(found)} checks found something wrong: {', '.join(bad)}.") if bad else None
    caller.conclude(DoctorDocument(found), failure)
