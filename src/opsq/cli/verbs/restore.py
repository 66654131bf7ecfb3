"""The verb restore: brings a replicated queue back in a new state folder, when its machine is lost."""

from __future__ import annotations

from shlex import quote

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.installation_documents import RestoreDocument
from opsq.options import values
from opsq.options.option import argument, option
from opsq.units import counted, format_instant, format_span


def restore(
    caller: Caller,
    url: str = argument("URL", "Of the replica: what the lost daemon had as --replicate-to.", values.store_url),
    force: bool = option("--force", "Take over at once, even from a daemon that still serves: see opsq-restore(1)."),
) -> None:
    """Bring a replicated queue back on this machine, when its own is lost; starts no daemon.

    Writes the newest state of the replica into a new state folder. The former owner may serve until its lease has
    ended: this waits for that, and refuses if the owner is alive.
    """
    from opsq.replica.restoring import restore as bring_back

    settings = caller.settings
    refuse_address(settings)
    found = bring_back(url, settings.state_dir, settings.database_path, is_forced=force, on_wait=caller.remark)
    former = found.former
    start = f"opsq --state-dir {quote(settings.state_dir)} start --replicate-to {quote(url)}"
    start += f" --store {quote(former.store)}" if former.store else ""
    document = RestoreDocument(
        settings.state_dir,
        found.size_bytes,
        found.newest_at or None,
        format_instant(former.written_at),
        former.host,
        former.lag_s,
        former.epoch + 1,
        found.is_checked,
        start,
    )
    caller.document(document)
    caller.table((), [(name, value) for name, value in _rows(document)])
    caller.remark(_said(document))


def _rows(document: RestoreDocument) -> list[tuple[str, object]]:
    return [
        ("state_dir", document.state_dir),
        ("bytes", document.bytes),
        ("newest_at", document.newest_at),
        ("former_host", document.former_host),
        ("former_heard_at", document.former_heard_at),
        ("former_lag_s", round(document.former_lag_s, 3)),
        ("start", document.start),
    ]


def _said(document: RestoreDocument) -> str:
    checked = "It is sound." if document.is_checked else "An older opsq wrote it: run opsq check once it has started."
    lag = (
        f"its oldest change that was not copied had waited for {format_span(document.former_lag_s)} then"
        if document.former_lag_s
        else "all it had was copied then"
    )
    return (
        f"Wrote {counted(document.bytes, 'byte')} to {document.state_dir}. {checked}\n"
        f"The newest change in it was copied at {document.newest_at or 'an unknown time'}. The former owner was last"
        f" heard of at {document.former_heard_at}, and {lag}. What it has committed later than its last copy is lost.\n"
        f"Now start it: {document.start}"
    )
