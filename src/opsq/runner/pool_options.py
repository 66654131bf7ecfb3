"""What a consumer of programs is asked to do, as one record that the command line, `opsq run` and tests fill in.

This file decides nothing; the meaning of each field is kept by the pool. It knows how many programs the machine allows
for.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple

from opsq.runner.exit_policy import ExitPolicy
from opsq.runner.feeding.programs import Feeding
from opsq.runner.polled_consumer import Until
from opsq.units import counted

_DESCRIPTORS_PER_JOB = 8
"""For the three streams of a program, its pidfd, the file that it is fed from, that of its long output, its log, and
its result in the store until that is synced.

Nor are there more when the next program has started and the last one has no verdict yet: the next has the first five,
the last its output, its log and its follow-ups."""
_DESCRIPTORS_KEPT = 100
"""For the store's files (64 are kept open), the connection, and our own start."""

OnLost = Literal["stop", "finish"]
"""What happens to the program of a chunk whose reservation was lost."""


class Logs(NamedTuple):
    """Where the stderr of programs goes instead of to a person: `FOLDER/SUBMISSION/INDEX.ATTEMPT.log`."""

    folder: str
    is_failed_only: bool = False
    """Keep only those of attempts that were not completed."""


class ConsumeOptions(NamedTuple):
    """All that can be asked for."""

    feeding: Feeding = Feeding()
    jobs: int | None = None
    """How many programs run at once; None: one a core."""
    strategy: str = "Random"
    submission_id: int | None = None
    """Work on this submission alone, in the order of the strategy."""
    until: Until = ""
    name: str = ""
    """What the consumer is called; default: host and process id."""
    grace_s: float = 10.0
    """How long programs may continue after the first SIGTERM, SIGINT or SIGHUP; what does not end is terminated, then
    killed, and its chunk given back. A second signal does all that at once."""
    max_chunks: int | None = None
    """End after this many chunks were completed or failed; no more are reserved than may still be run."""
    stop_after_s: float | None = None
    """Start nothing more after this many seconds, and end when what runs has ended."""
    claim: str = ""
    """A name that only one consumer of the daemon may hold at a time; see `Hello.claim`."""
    max_runtime_s: float | None = None
    """A program that runs longer is ended (SIGTERM, the grace, SIGKILL), and has failed."""
    max_result_bytes: int | None = None
    """A program that writes a longer result is killed, and has failed; None: see `OutputLimit`."""
    on_lost: OnLost = "stop"
    exit_policy: ExitPolicy = ExitPolicy()
    logs: Logs | None = None
    counted_pair: tuple[str, str] | None = None
    """Metadata of the submissions whose chunks are counted for the viewer; None: the one that is worked on, or all."""

    @property
    def whole_strategy(self) -> str:
        """The strategy, bound to the submission if there is one."""
        if self.submission_id is None:
            return self.strategy
        return f"SelectOnly(submission={self.submission_id}, {self.strategy})"

    def affordable_jobs(self, say: Callable[[str], object]) -> int:
        """How many programs run at once; `say` gets a remark if that is fewer than requested."""
        wanted = self.jobs or cores_count()
        jobs = min(wanted, affordable_count())
        if jobs < wanted:
            say(f"Only {counted(jobs, 'program')} run at once: more would exceed the limit of open files (ulimit -n).")
        return jobs


DEFAULTS = ConsumeOptions()


def cores_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def affordable_count() -> int:
    """How many programs the limit of open files allows for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        sys.maxsize if limit == resource.RLIM_INFINITY else max((limit - _DESCRIPTORS_KEPT) // _DESCRIPTORS_PER_JOB, 1)
    )
