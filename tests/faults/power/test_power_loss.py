"""A loss of power at any moment: what was acknowledged is there, and nothing is half there.

Each story of `scenarios` is recorded once; then the disk is rebuilt as it may be found after a cut, and opened.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from daemons import connected, running, settings_of
from faults.power import promises
from faults.power.disk import Disk, Luck, Promise
from faults.power.recording import recorded
from faults.power.scenarios import INPUTS, SCENARIOS, STATE, Log
from opsq.client.sync.queue import Queue
from opsq.content import file_io
from opsq.errors import OpsqError
from opsq.store.database_file import create
from opsq.wire.messages import Check, Checked

CUTS, SOAK_CUTS = 15, 1000
"""At random places of each story, besides one after each acknowledgement."""
SEED = 1
DATABASE = f"{STATE}/opsq."
"""The files of the database: what is not committed yet, or copied from the log, may be unsynced at any time."""


class Cut(NamedTuple):
    """A loss of power after so many operations."""

    after: int
    luck: Luck


class Told(NamedTuple):
    """A recorded story, and where it took place."""

    log: Log
    root: Path

    def acknowledged(self) -> list[Cut]:
        """Right after each acknowledgement, all that is not synced is lost."""
        operations = self.log.operations
        return [Cut(at, Luck(0.0)) for at, one in enumerate(operations, 1) if isinstance(one, Promise)]

    def anywhere(self, count: int, seed: int) -> list[Cut]:
        """Anywhere, with any luck; in order."""
        rng = random.Random(seed)
        cuts = []
        for _ in range(count):
            share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
            luck = Luck(share, rng.choice((0, 512, 4096)), rng.getrandbits(32))
            cuts.append(Cut(rng.randrange(self.log.first_cut, len(self.log.operations) + 1), luck))
        return sorted(cuts)

    def found(self, cuts: list[Cut]) -> Iterator[tuple[Cut, dict[str, promises.Fact]]]:
        """Put the disk in place as it is found after each cut; with what was promised."""
        disk, done = Disk(), 0
        for cut in cuts:
            for operation in self.log.operations[done : cut.after]:
                disk.apply(operation)
            done = cut.after
            rebuild(self.root, disk.after_crash(cut.luck))
            yield cut, disk.promises


def rebuild(root: Path, tree: dict[str, bytes | None]) -> None:
    """Make the folder what the crash has left of it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir(0o700)
        else:
            (root / path).write_bytes(content)
            (root / path).chmod(0o600)


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    """Where the stories take place: in memory if possible, since many syncs are to come."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="opsq-", dir=memory if os.access(memory, os.W_OK) else "/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=SCENARIOS)
def told(request: pytest.FixtureRequest, places: Path) -> Told:
    """A story, recorded in a process of its own."""
    place = Path(tempfile.mkdtemp(prefix=f"{request.param}-", dir=places))
    root, log = place / "disk", place / "log"
    root.mkdir()
    command = [sys.executable, "-m", "faults.power.scenarios", request.param, str(root), str(log)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert run.returncode == 0, run.stderr
    return Told(pickle.loads(log.read_bytes()), root)


@pytest.fixture(autouse=True)
def any_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place counts as unchanged: the recorded disk has no times and inode numbers of files."""
    monkeypatch.setattr(file_io, "_check_identity", lambda *_: None)


def wrong_after(told: Told, cuts: list[Cut]) -> list[str]:
    """All that is wrong when the queue is opened after one of these cuts."""
    wrong = []
    for cut, promised in told.found(cuts):
        try:
            with Queue.open(told.root / STATE) as queue:
                wrong += [f"{cut}: {text}" for text in promises.broken(queue, promised)]
        except OpsqError as error:
            wrong.append(f"{cut}: cannot be opened: {error}")
    return wrong


def test_all_writes_are_recorded(told: Told) -> None:
    """Otherwise the other tests here would see less than what is lost."""
    assert told.log.unlike == []


def test_what_was_acknowledged_survives_the_loss_of_all_that_was_not_synced(told: Told) -> None:
    cuts = told.acknowledged()
    assert cuts
    assert wrong_after(told, cuts) == []


def test_content_and_its_names_are_synced_before_they_are_acknowledged(told: Told) -> None:
    disk = Disk()
    early = []
    for at, operation in enumerate(told.log.operations):
        disk.apply(operation)
        if isinstance(operation, Promise):
            early += [f"{at}: {path}" for path in disk.unsynced() if not path.startswith((DATABASE, INPUTS))]
    assert early == []


def test_loss_of_power_anywhere_leaves_nothing_half_there(told: Told, pytestconfig: pytest.Config) -> None:
    is_soak = pytestconfig.getoption("--hypothesis-profile") == "soak"
    seed = random.randrange(1 << 32) if is_soak else SEED
    print(f"seed {seed}")
    assert wrong_after(told, told.anywhere(SOAK_CUTS if is_soak else CUTS, seed)) == []


def test_new_database_has_a_durable_name_whatever_sqlite_syncs(places: Path) -> None:
    root = places / "new"
    root.mkdir()
    disk = Disk()
    with recorded(root) as recording:
        recording.trusts_sqlite = False
        os.mkdir(root / "state")
        create(root / "state" / "opsq.sqlite")
    for operation in recording.operations:
        disk.apply(operation)
    assert disk.unsynced() == []


@pytest.mark.parametrize("told", ["first_start", "migration", "long_log"], indirect=True)
def test_daemon_starts_after_a_loss_of_power(told: Told) -> None:
    for _ in told.found(told.anywhere(1, SEED)):
        with running(told.root / STATE), connected(settings_of(told.root / STATE)) as client:
            assert client.ask(Check(2)) == Checked(2, [])
