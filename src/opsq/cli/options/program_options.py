"""The options by which programs are run on chunks, declared once for the verbs that do so, and what they mean to the pool.

It must not run anything.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal, NamedTuple

import typer

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.errors import UsageError
from opsq.runner.exit_policy import parse_exit_policy
from opsq.runner.feeding.programs import Feeding
from opsq.runner.pool_options import ConsumeOptions, Logs, cores_count

JOBS_LIMIT_COUNT = 4096

_JOBS = re.compile(r"([+-]?)([0-9]{1,6})(%?)", re.ASCII)


class Records(NamedTuple):
    """What ends a record, for verbs that do not cut the input themselves."""

    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter", "-d", metavar="TEXT", help="What ends a record, with escapes; a line end by default."
        ),
    ] = None
    null: Annotated[bool, typer.Option("--null", "-0", help="A NUL byte ends a record.")] = False

    def as_separator(self) -> bytes:
        """The bytes that end a record.

        Raises:
            UsageError: both were given, or an escape is broken.
        """
        values.exclude(delimiter=self.delimiter, null=self.null)
        return b"\0" if self.null else b"\n" if self.delimiter is None else values.delimiter(self.delimiter)


class Consuming(NamedTuple):
    """How programs are run and judged; each field is an option."""

    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs", "-j", metavar="N|N%|+N|-N", help="How many at once: N, or of the cores; by default one a core."
        ),
    ] = None
    each: Annotated[
        bool, typer.Option("--each", help="Run once per record of the chunk, which stands for {} or comes last.")
    ] = False
    args: Annotated[
        int | None,
        typer.Option(
            "--args", min=1, metavar="N", help="Run once per up to N records, which are arguments, as xargs does."
        ),
    ] = None
    server: Annotated[
        Literal["frames", "records"] | None,
        typer.Option(
            "--server", help="Start one program per slot and feed it chunk after chunk, as frames or as records."
        ),
    ] = None
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="D", help="How long what runs may go on after a signal.")
    ] = None
    max_runtime: Annotated[
        str | None,
        typer.Option("--max-runtime", metavar="D", help="End a program that runs longer; its chunk has failed."),
    ] = None
    on_lost: Annotated[
        Literal["stop", "finish"],
        typer.Option(
            "--on-lost", help="What happens to a program whose chunk is not ours any more: end it, or let it end."
        ),
    ] = "stop"
    complete_on: Annotated[
        str | None,
        typer.Option(
            "--complete-on", metavar="LIST", help="Exit statuses that complete the chunk, such as 0,3; 0 by default."
        ),
    ] = None
    retry_on: Annotated[
        str | None,
        typer.Option(
            "--retry-on", metavar="LIST", help="Statuses (75,80-90) and signals (SIGSEGV) after which it is retried."
        ),
    ] = None
    bury_on: Annotated[
        str | None,
        typer.Option(
            "--bury-on",
            metavar="LIST",
            help="Likewise, after which the chunk is dead at once; `other`: all not listed.",
        ),
    ] = None
    log_dir: Annotated[
        str | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="Write what programs say on stderr to DIR/SUBMISSION/INDEX.ATTEMPT.log."
        ),
    ] = None
    log_failed: Annotated[
        bool, typer.Option("--log-failed", help="Keep only the logs of attempts that were not completed.")
    ] = False
    progress: Annotated[bool, typer.Option("--progress", help="Off a terminal: a line about the state every 30 s.")] = (
        False
    )
    clean_env: Annotated[
        bool, typer.Option("--clean-env", help="Give programs nothing but PATH and what is said of the chunk.")
    ] = False

    def as_options(self, caller: Caller, separator: bytes) -> ConsumeOptions:
        """What they mean to the pool; the rest of its options is left at the defaults.

        Args:
            separator: what ends a record.

        Raises:
            UsageError: a value is not possible, or two contradict each other.
        """
        if self.log_failed and self.log_dir is None:
            raise UsageError("--log-failed is about --log-dir, which is not there.")
        values.exclude(each=self.each, args=self.args, server=self.server)
        grace_s = values.duration("--grace", self.grace)
        return ConsumeOptions(
            feeding=Feeding(self.each, self.args, separator, self.server or "", self.clean_env),
            jobs=jobs_count(self.jobs, cores_count()),
            grace_s=caller.settings.grace_s if grace_s is None else grace_s,
            max_runtime_s=positive_duration("--max-runtime", self.max_runtime),
            on_lost=self.on_lost,
            exit_policy=parse_exit_policy(self.complete_on, self.retry_on, self.bury_on),
            logs=None if self.log_dir is None else Logs(os.path.abspath(self.log_dir), self.log_failed),
        )


def positive_duration(option: str, text: str | None) -> float | None:
    """Seconds, more than 0; None stays None."""
    duration_s = values.duration(option, text)
    if duration_s is not None and duration_s <= 0:
        raise UsageError(f"{option} {text}: give more than 0.")
    return duration_s


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
            f"--jobs {text}: give a count, a percentage of the cores (50%), or how many more or fewer than cores (+1, -1)."
        )
    number = int(found[2])
    if found[3]:
        count = max(cores * number // 100, 1) if number else 0
    else:
        count = max(cores + int(found[1] + found[2]), 1) if found[1] else number
    if not 1 <= count <= JOBS_LIMIT_COUNT:
        raise UsageError(f"--jobs {text}: from 1 to {JOBS_LIMIT_COUNT} programs run at once.")
    return count
