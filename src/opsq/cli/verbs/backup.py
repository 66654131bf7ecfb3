"""The verb backup: a copy of the database."""

from __future__ import annotations

import os

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.output.installation_documents import BackupDocument
from opsq.options.option import argument
from opsq.units import counted
from opsq.wire.messages import Backup, Changed


def backup(
    caller: Caller,
    path: str = argument("FILE", "Where to; it must not exist."),
) -> None:
    """Copy the database to a file, also while work continues; the content of chunks and large results is not in it.

    A daemon can start on the copy as it is, but it needs the content store too: copy that folder afterwards, unless it
    is an object store.
    """
    with LastingConnection(caller) as daemon:
        request = Backup(daemon.next_id(), os.path.abspath(path))
        size_bytes = daemon.call(request, Changed).count
        store = daemon.welcome.store
    caller.document(BackupDocument(os.path.abspath(path), size_bytes))
    caller.remark(
        f"Wrote {counted(size_bytes, 'byte')} to {path}. Chunks and large results are not in it: "
        f"copy {_place(store)} too."
    )


def _place(store: str) -> str:
    """A store as people name it: the folder, or the URL."""
    return store.removeprefix("file://").replace("%25", "%") if store.startswith("file://") else store
