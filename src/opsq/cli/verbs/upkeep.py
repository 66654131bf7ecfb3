"""The verbs that look after an installation: config, doctor, check, backup, vacuum."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import call_alive
from opsq.cli.options import values
from opsq.cli.output.daemon_documents import (
    BackupDocument,
    CheckDocument,
    ConfigDocument,
    DoctorDocument,
    FindingShape,
    SettingShape,
    VacuumDocument,
)
from opsq.errors import Conflict, DatabaseDamaged, OpsqError, Unreachable
from opsq.settings import SETTINGS, STRATEGIES
from opsq.wire.messages import Backup, Changed, Check, Checked, Vacuum


def config(caller: Caller) -> None:
    """Print every setting: its name, its value, and where the value came from."""
    texts = caller.settings.texts()
    rows = [(setting.name, texts[setting.name], caller.settings.source(setting.name)) for setting in SETTINGS]
    named = sorted(caller.settings.strategies.items())
    rows += [(f"{STRATEGIES}.{name}", text, caller.settings.source(f"{STRATEGIES}.{name}")) for name, text in named]
    caller.document(ConfigDocument([SettingShape(*row) for row in rows]))
    caller.table(("setting", "value", "from"), rows)


def doctor(caller: Caller) -> None:
    """Look for what is wrong on this machine, and say what to do; exits 5 if something is wrong."""
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


def check(caller: Caller) -> None:
    """Check the database and what must always hold; also while no daemon runs. Exits 6 if something is damaged."""
    try:
        with caller.connect() as daemon:
            problems = call_alive(daemon, Check(daemon.next_id()), Checked).problems
    except Unreachable as error:
        problems = _check_stopped(caller, error)
    caller.lines(problems)
    failure = DatabaseDamaged(
        f"The check found {values.counted(len(problems), 'problem')}.",
        hint="Keep a copy of the file; restore a backup.",
    )
    caller.conclude(CheckDocument(problems), failure if problems else None)
    caller.remark("No problems were found.")


def backup(
    caller: Caller,
    path: Annotated[str, typer.Argument(metavar="FILE", help="Where to; it must not exist.")],
) -> None:
    """Copy the database to a file, also while work goes on; the content of chunks and large results is not in it.

    A daemon can start on the copy as it is, but it needs the content store too: copy that folder after this, unless it is an object store.
    """
    with caller.connect() as daemon:
        request = Backup(daemon.next_id(), os.path.abspath(path))
        size_bytes = call_alive(daemon, request, Changed).count
        store = daemon.welcome.store
    caller.document(BackupDocument(os.path.abspath(path), size_bytes))
    caller.remark(
        f"{size_bytes} bytes were written to {path}. Chunks and large results are not in it: copy {_place(store)} too."
    )


def vacuum(caller: Caller) -> None:
    """Give free pages of the database back to the file system; work goes on meanwhile."""
    with caller.connect() as daemon:
        size_bytes = call_alive(daemon, Vacuum(daemon.next_id()), Changed).count
    caller.document(VacuumDocument(size_bytes))
    caller.remark(f"{size_bytes} bytes were given back.")


def _place(store: str) -> str:
    """A store as people name it: the folder, or the URL."""
    return store.removeprefix("file://").replace("%25", "%") if store.startswith("file://") else store


def _check_stopped(caller: Caller, error: Unreachable) -> list[str]:
    """Check the file itself, if it is on this machine and nobody has it open."""
    from opsq.cli.stopped_queue import stopped_database
    from opsq.store.integrity import problems

    with stopped_database(caller, error) as database:
        return problems(database)
