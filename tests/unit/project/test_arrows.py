"""The import arrows hold, and their checker can fail; importing opsq loads nothing heavy.

It must not list arrows again: they stand in tools/check_arrows.py alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
CHECKER = REPOSITORY / "tools" / "check_arrows.py"

# (file, its text, the arrow that is refused)
BACKWARD = [
    (
        "store/database.py",
        "from opsq.queue.engine import Engine",
        "opsq.store.database must not import opsq.queue.engine",
    ),
    ("store/lanes.py", "import opsq.daemon", "opsq.store.lanes must not import opsq.daemon"),
    ("wire/frames.py", "def f():\n    from ..client import aio", "opsq.wire.frames must not import opsq.client.aio"),
    (
        "queue/dispatch/gates.py",
        "from opsq.wire.frames import encode",
        "opsq.queue.dispatch.gates must not import opsq.wire.frames",
    ),
    ("client/aio.py", "from opsq.queue import engine", "opsq.client.aio must not import opsq.queue.engine"),
    ("strategy/text.py", "from opsq import connect", "opsq.strategy.text must not import opsq"),
    ("strategy/__init__.py", "from ..store import lanes", "opsq.strategy must not import opsq.store.lanes"),
    ("runner/pool.py", "from opsq import cli", "opsq.runner.pool must not import opsq.cli"),
    ("errors.py", "from . import ids", "opsq.errors must not import opsq.ids"),
    ("__init__.py", "from .queue import engine", "opsq must not import opsq.queue.engine"),
    ("newcomer.py", "import os", "opsq.newcomer has no rule"),
    ("queue/newcomer.py", "import os", "opsq.queue.newcomer has no room"),
    (
        "queue/dispatch/front.py",
        "if TYPE_CHECKING:\n    from opsq.queue.state import EngineState",
        "opsq.queue.dispatch.front must not import opsq.queue.state",
    ),
    (
        "queue/state.py",
        "from opsq.queue.chunks.complete import Completions",
        "opsq.queue.state must not import opsq.queue.chunks.complete",
    ),
    ("client/aio/queue.py", "from ..sync import queue", "opsq.client.aio.queue must not import opsq.client.sync"),
    (
        "cli/output/tables.py",
        "from opsq.cli.verbs.ls import run",
        "opsq.cli.output.tables must not import opsq.cli.verbs.ls",
    ),
]

FORWARD = [
    ("store/database.py", "from opsq.errors import NotFound\nfrom . import lanes"),
    ("queue/chunks/reserve.py", "from opsq.queue.dispatch.front import Front\nfrom ..state import EngineState"),
    ("queue/dispatch/gates.py", "from opsq.wire.messages import Reserve\nfrom opsq.wire import messages"),
    ("client/embedded.py", "from opsq.queue import engine\nfrom ..store import database"),
    ("client/__init__.py", "from .embedded import Queue"),
    ("cli/submit.py", "import opsq.daemon.server\nfrom opsq import connect"),
    ("wire/frames.py", "import os, opsqueue\nfrom opsqueue import queue"),
    ("__init__.py", "def __getattr__(name):\n    from opsq.client import connect\n    from . import strategy"),
]


def run_checker(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker as `make lint` does, on the given package folder."""
    return subprocess.run([sys.executable, CHECKER, root], capture_output=True, text=True)


def package_with(root: Path, name: str, text: str) -> Path:
    """Make a small package of the real unit names, in which one file says `text`."""
    for unit in ("client", "cli", "daemon", "queue", "runner", "store", "strategy", "wire"):
        (root / unit).mkdir(parents=True)
        (root / unit / "__init__.py").touch()
    for module in ("errors", "ids", "client/aio", "queue/engine", "store/lanes", "wire/messages"):
        (root / f"{module}.py").touch()
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text + "\n")
    return root


def test_sources_have_no_arrow_that_runs_back():
    """The whole of src/opsq passes the check that CI runs."""
    outcome = run_checker(REPOSITORY / "src" / "opsq")
    assert (outcome.returncode, outcome.stderr) == (0, "")


@pytest.mark.parametrize(("name", "text", "refusal"), BACKWARD)
def test_backward_import_is_refused_by_name(tmp_path: Path, name: str, text: str, refusal: str):
    """Each kind of backward arrow ends with exit 1 and a line that names it, once."""
    outcome = run_checker(package_with(tmp_path / "opsq", name, text))
    assert outcome.returncode == 1
    [line] = outcome.stderr.splitlines()
    assert refusal in line
    assert str(tmp_path / "opsq" / name) in line


@pytest.mark.parametrize(("name", "text"), FORWARD)
def test_forward_import_is_accepted(tmp_path: Path, name: str, text: str):
    """Arrows of the house, absolute or relative, pass; so do foreign names that begin like ours."""
    outcome = run_checker(package_with(tmp_path / "opsq", name, text))
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_circle_of_files_is_refused_with_its_path(tmp_path: Path):
    """Also one through an import that only type checkers see.

    Only one line is printed, from the first file back to it.
    """
    root = package_with(tmp_path / "opsq", "daemon/server.py", "from opsq.daemon import session\nfrom . import sockets")
    (root / "daemon" / "sockets.py").touch()
    (root / "daemon" / "session.py").write_text("from opsq.daemon.committer import Committer\n")
    (root / "daemon" / "committer.py").write_text("if TYPE_CHECKING:\n    from .server import Server\n")
    outcome = run_checker(root)
    assert outcome.returncode == 1
    [line] = outcome.stderr.splitlines()
    circle = "opsq.daemon.committer → opsq.daemon.server → opsq.daemon.session → opsq.daemon.committer"
    assert line == f"{root / 'daemon' / 'committer.py'}: files import each other in a circle: {circle}"


def test_import_of_opsq_loads_nothing_heavy():
    """`import opsq` stays cheap: a fresh interpreter has none of the big libraries afterwards."""
    code = "import opsq, sys; print(*sorted({'typer', 'rich', 'uvloop', 'pyspark', 'obstore'} & set(sys.modules)))"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.split() == []
