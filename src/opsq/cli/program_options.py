"""How programs are run on chunks.

The options, declared once for the verbs that run some, and what they mean to the pool.

It must not run anything.
"""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple

from opsq.cli.caller import Caller
from opsq.errors import UsageError
from opsq.options import values
from opsq.options.option import COUNT, duration, option, option_set, positive_duration
from opsq.runner.exit_policy import parse_exit_policy
from opsq.runner.feeding.programs import Feeding
from opsq.runner.pool_options import ConsumeOptions, Logs, cores_count

JOBS_LIMIT_COUNT = 4096

_JOBS = re.compile(r"([+-]?)([0-9]{1,6})(%?)", re.ASCII)

TTY = option("--tty", "Let programs use the terminal, one at a time: for those that ask for something there.")


@option_set
class Records(NamedTuple):
    """What ends a record, for verbs that do not split the input themselves."""

    delimiter: bytes | None = option(
        "-d, --delimiter TEXT", "What ends a record, with escapes.", values.delimiter, shown="a line end"
    )
    null: bool = option("-0, --null", "A NUL byte ends a record.")

    def as_separator(self) -> bytes:
        """The bytes that end a record.

        Raises:
            UsageError: both were given.
        """
        values.exclude(delimiter=self.delimiter, null=self.null)
        return b"\0" if self.null else self.delimiter or b"\n"


@option_set
class Consuming(NamedTuple):
    """How programs are run and judged; each field is an option."""

    jobs: str | None = option(
        "-j, --jobs N|N%|+N|-N", "Concurrent programs: N, or relative to the cores.", shown="one per core"
    )
    each: bool = option("--each", "Run once per record of the chunk, which replaces {} or comes last.")
    args: int | None = option(
        "--args N", "Run once per up to N records, which are passed as arguments, as xargs does.", COUNT
    )
    server: Literal["frames", "records"] | None = option(
        "--server frames|records",
        "Start one program per slot and feed it chunk after chunk, as frames or as records.",
    )
    grace_s: float | None = option(
        "--grace D", "How long programs may continue after a signal.", duration, shown="the setting grace_s"
    )
    max_runtime_s: float | None = option(
        "--max-runtime D", "End a program that runs longer than this; its chunk fails.", positive_duration
    )
    max_result_bytes: int | None = option(
        "--max-result SIZE", "End a program that writes a longer result than this; its chunk fails.", values.size
    )
    on_lost: Literal["stop", "finish"] = option(
        "--on-lost stop|finish",
        "What happens to a program whose reservation was lost: end it, or let it finish.",
        default="stop",
    )
    complete_on: str | None = option(
        "--complete-on LIST", "Exit statuses that complete the chunk, such as 0,3.", shown="0"
    )
    retry_on: str | None = option(
        "--retry-on LIST", "Statuses (75,80-90) and signals (SIGSEGV) after which the chunk is retried."
    )
    bury_on: str | None = option(
        "--bury-on LIST", "Likewise, after which the chunk is dead at once; `other`: all that are not listed."
    )
    log_dir: str | None = option("--log-dir DIR", "Write the stderr of programs to DIR/SUBMISSION/INDEX.ATTEMPT.log.")
    log_failed: bool = option("--log-failed", "Keep only the logs of attempts that did not complete.")
    progress: bool = option("--progress", "Report progress every 30 s where stderr is not a terminal.")
    clean_env: bool = option("--clean-env", "Give programs only PATH and the variables about the chunk as environment.")

    def as_options(self, caller: Caller, separator: bytes, *, tty: bool = False) -> ConsumeOptions:
        """What they mean to the pool; the rest of its options is left at the defaults.

        Args:
            separator: what ends a record.
            tty: programs use the terminal.

        Raises:
            UsageError: a value is not possible, or two contradict each other.
        """
        if self.log_failed and self.log_dir is None:
            raise UsageError("--log-failed needs --log-dir.")
        values.exclude(each=self.each, args=self.args, server=self.server)
        jobs = 1 if tty and self.jobs is None else jobs_count(self.jobs, cores_count())
        if tty and jobs > 1:
            raise UsageError(f"--tty runs one program at a time, not --jobs {self.jobs}.")
        return ConsumeOptions(
            feeding=Feeding(self.each, self.args, separator, self.server or "", self.clean_env, tty),
            jobs=jobs,
            grace_s=caller.settings.grace_s if self.grace_s is None else self.grace_s,
            max_runtime_s=self.max_runtime_s,
            max_result_bytes=self.max_result_bytes,
            on_lost=self.on_lost,
            exit_policy=parse_exit_policy(self.complete_on, self.retry_on, self.bury_on),
            logs=None if self.log_dir is None else Logs(os.path.abspath(self.log_dir), self.log_failed),
        )


def jobs_count(text: str | None, cores: int) -> int:
    """How many programs `-j` means: `4`, `50%` of the cores, one more (`+1`) or fewer (`-1`) than cores; at least 1.

    Raises:
        UsageError: it is none of these, 0, or above the limit.
    """
    if text is None:
        return cores
    found = _JOBS.fullmatch(text.strip())
    if found is None or (found[1] and found[3]):
        raise UsageError(
            f"--jobs {text}: give a count, a percentage of the cores (50%), or how many more or fewer than cores"
            " (+1, -1)."
        )
    number = int(found[2])
    if found[3]:
        count = max(cores * number // 100, 1) if number else 0
    else:
        count = max(cores + int(found[1] + found[2]), 1) if found[1] else number
    if not 1 <= count <= JOBS_LIMIT_COUNT:
        raise UsageError(f"--jobs {text}: give 1 to {JOBS_LIMIT_COUNT} programs.")
    return count
