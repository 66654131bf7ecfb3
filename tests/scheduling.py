"""Owns which tests run in one worker of pytest-xdist, and which come first.

Those that share a JVM stay together, long ones lead.

It must not know what a test does beyond where it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

SHARING = {
    "tests/spark/test_connect.py": "connect",
    "tests/spark/fleet/test_pipeline_faults.py": "cluster",
    "tests/spark/fleet/test_speculation.py": "cluster",
    "tests/spark/cli/test_one_session.py": "session",
    "tests/spark/cli/": "",
    "tests/spark/": "session",
}
"""What the tests below a path share, the first path that fits; "": nothing, each may run anywhere. Other files stay
whole."""

ORDER = (
    "cluster",
    "connect",
    "session",
    "tests/spark/",
    "tests/faults/",
    "tests/acceptance/",
    "tests/integration/",
    "",
)
"""Scopes by how they begin, longest first, so that no worker is left with a long one at the end."""


class Scheduling(LoadScopeScheduling):
    """Hands scopes of tests to workers, as `ORDER` says."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        shared = next((name for start, name in SHARING.items() if nodeid.startswith(start)), path)
        return shared or nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=_rank), last=False)
        super()._assign_work_unit(node)


def _rank(scope: str) -> int:
    return next(place for place, start in enumerate(ORDER) if scope.startswith(start))


def scheduling(config: Any, log: Any) -> Scheduling | None:
    """What hands out tests, unless another way was asked for (`--dist`)."""
    return Scheduling(config, log) if config.getvalue("dist") == "load" else None
