"""How the stored database of schema 1 was made: run `python tests/compat/made.py` with `tests` on the path to make it anew.

It was needed as long as schema 1 was not released; afterwards the stored file must never change, and this stays as its description.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import apsw

from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket

DATA = Path(__file__).with_name("data")
FILE = DATA / "schema-1.sqlite"
STATE = DATA / "schema-1.txt"
LEASED_S = 1e9
TABLES_OF_SCHEMA_2 = ("pause", "rate_limit", "weight", "fair_pass")


def work(rig: Rig) -> Ticket:
    """Submissions in all states, chunks in all states, results, attachments, metadata of both types; the ticket of a lease."""
    rig.submit(200, metadata={"tenant": "a", "n": 7}, keep_on_dead=True, content=b"parts", attachment=b"\x00\xff", priority=3)
    rig.submit(0, metadata={"tenant": "b"})
    rig.submit(3, delay_s=1e6)
    rig.submit(3, not_before_at=rig.now.wall + 10**10, expires_s=1e7)
    cancelled = rig.submit(5, metadata={"n": "7"})
    failed = rig.submit(5)
    rig.submit(2, unique_key="nightly", max_attempts=2, max_lost=3, backoff=m.Backoff(2.0, 3.0, 60.0))
    peer = rig.connect("worker")
    first, second, *_ = rig.reserve(peer, 130)
    rig.complete(peer, first.held([0, 1, 5]), results=m.msgspec.Raw(m.msgspec.msgpack.encode([b"a", b"\x00", b""])))
    rig.fail(peer, first.held([2]), is_final=True, reason="broken", exit_status=3)
    rig.fail(peer, first.held([3]), delay_s=1e6, reason="later")
    rig.fail(peer, first.held([4]), delay_s=0.0, reason="at once")
    rig.complete(peer, second.held())
    rig.disconnect(peer)
    rig.ask(rig.connect(), m.Cancel(1, cancelled, "not needed"))
    peer = rig.connect("worker")
    for ticket in rig.reserve(peer, 200):
        if ticket.submission_id == failed:
            rig.fail(peer, ticket.held([0]), is_final=True, signal=9)
    rig.disconnect(peer)
    [leased] = rig.reserve(rig.connect("shell"), 1, "NewestFirst", lease_s=LEASED_S)
    return leased


def main() -> None:
    """Make the file and the text that tells its state."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-"))
    rig = Rig(folder)
    leased = work(rig)
    rig.stop()
    DATA.mkdir(exist_ok=True)
    FILE.unlink(missing_ok=True)
    shutil.copy(rig.path, FILE)
    connection = apsw.Connection(str(FILE))
    for table in TABLES_OF_SCHEMA_2:
        connection.execute(f"DROP TABLE {table}")
    connection.execute("PRAGMA user_version = 1")
    connection.execute("VACUUM")
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    rig._open(rig.path.parent)
    lines = [*rig.dump(), str(tuple(leased))]
    STATE.write_text("".join(f"{line}\n" for line in lines))
    rig.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
