"""The verb run: the whole round in one command line, with the daemon that is there or a temporary one.

This file reads the options, gives the round its identity and connects; `round_run` does the work, `round_report`
reports it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from shutil import which
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import UNSET

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import is_addressed
from opsq.cli.program_options import TTY, Consuming
from opsq.cli.run.feed import is_plain
from opsq.cli.run.round_report import RoundReport
from opsq.cli.run.round_run import RECONNECT_S, RoundRun, RunPlan
from opsq.cli.run.rounds import ROUND_KEYS, Once, Round, key_of, new_key
from opsq.cli.upload import expand, read_whole
from opsq.client.sync.producer import Producer
from opsq.content.input_file import STDIN
from opsq.content.input_remarks import input_remarks
from opsq.content.output_file import is_stdout
from opsq.daemon.temporary_daemon import DaemonUse, run_conflict
from opsq.documents.submissions import RunDocument
from opsq.errors import (
    InputUnreadable,
    NameTaken,
    OpsqError,
    Unreachable,
    UsageError,
)
from opsq.options import values
from opsq.options.chunk_options import Cutting
from opsq.options.option import COUNT, argument, duration, option, options
from opsq.options.result_options import Shaping
from opsq.runner.feeding.program_kinds import check_command
from opsq.runner.pool import Connect
from opsq.wire.messages import Backoff, Claim

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection


class _Stamp(NamedTuple):
    """An input, and what identifies the content of a plain file."""

    path: str
    size_bytes: int | None
    time_ns: int | None


def run(
    caller: Caller,
    words: list[str] = argument(
        "INPUT -- COMMAND...", "Files, quoted globs or - for stdin; behind -- the program and its arguments."
    ),
    cutting: Cutting = options(Cutting),
    programs: Consuming = options(Consuming),
    tty: bool = TTY,
    metadata: list[str] = option(
        "-m, --metadata KEY=VALUE...", "Strategic metadata; programs see it as OPSQ_META_KEY."
    ),
    title: str | None = option("--title TEXT", "A line for people, which lists and progress show.", values.title),
    attach: str | None = option("--attach FILE", "A file whose path programs get in OPSQ_ATTACHMENT."),
    max_attempts: int | None = option("--max-attempts N", "Failures until a chunk is dead.", COUNT),
    backoff: Backoff | None = option(
        "--backoff BASE,FACTOR,MAX", "Delays between attempts, such as 1s,2,5m.", values.backoff
    ),
    on_dead: Literal["fail", "keep"] = option(
        "--on-dead fail|keep", "A dead chunk ends the round, or the rest is still processed.", default="fail"
    ),
    skip_dead: bool = option("--skip-dead", "With --on-dead keep: write the results after a dead chunk too."),
    output: str | None = option(
        "-o, --output FILE", "Write the results to this file: beside it first, then renamed; - is stdout."
    ),
    shaping: Shaping = options(Shaping),
    resume: str | None = option(
        "--resume KEY", "Name the round, so that it can continue later even if its input is a stream."
    ),
    idempotency_key: str | None = option(
        "--idempotency-key KEY", "As --resume, and once the round is done, it is not done again."
    ),
    keep_s: float | None = option(
        "--keep D",
        "With --idempotency-key: how long after its end a round is not done again; else as long as it is known.",
        duration,
    ),
    fresh: bool = option("--fresh", "Discard what the same command has done before, and start over."),
) -> None:
    """Run a program on each chunk of the inputs, and write the results to stdout in input order: the whole round in one
    line.

    The same command, run again, continues with what is left of a round that did not complete. Without a daemon, one is
    started, and stopped at the end.
    """
    inputs, command = _split(words)
    paths = expand(inputs)
    for path in paths:
        _check(path)
    if skip_dead and on_dead != "keep":
        raise UsageError("--skip-dead leaves out what is dead, so it needs --on-dead keep.")
    if tty and STDIN in paths and sys.stdin.isatty():
        raise UsageError("--tty gives the terminal to programs, so the input cannot be typed there.")
    splitting = cutting.as_splitting()
    how = programs.as_options(caller, splitting.delimiter, tty=tty)
    check_command(command, how.feeding)
    for remark in input_remarks(paths, splitting):
        caller.warn(remark)
    values.exclude(resume=resume, idempotency_key=idempotency_key)
    if keep_s is not None and idempotency_key is None:
        raise UsageError("--keep needs --idempotency-key.")
    is_resumable = resume is not None or idempotency_key is not None or all(map(is_plain, paths))
    pairs = values.metadata(metadata)
    if taken := ROUND_KEYS & pairs.keys():
        raise UsageError(f"opsq run uses the metadata key {min(taken)} itself.", hint="Use another key.")
    options: dict[str, Any] = {
        "metadata": pairs,
        "attachment": None if attach is None else read_whole(attach),
        "max_attempts": max_attempts,
        "backoff": backoff,
        "on_dead": on_dead,
    }
    found = _stamps(paths)
    line = _line(found, [splitting, how.feeding, [os.fsencode(word) for word in command]], options)
    once: Once | None = None
    if idempotency_key is not None:
        key, once = key_of(["once", idempotency_key]), Once(idempotency_key, keep_s, line)
    else:
        key = key_of([resume, *line.values()]) if is_resumable else new_key()
    plan = RunPlan(
        command=command,
        options=how,
        paths=paths,
        splitting=splitting,
        output=None if is_stdout(output) else output,
        shaping=shaping.as_shaping(cutting.dialect),
        is_resumable=is_resumable,
        is_fresh=fresh,
        is_skipping=skip_dead,
        is_keeping=on_dead == "keep",
        is_reporting=programs.progress,
    )
    with _daemon(caller, key) as daemon_use:
        connect = _connect(caller, daemon_use)
        producer = _claiming(connect, key if is_resumable else None)
        try:
            round_ = Round(producer, key, options | {"title": title}, is_resumable=is_resumable, once=once)
            if not fresh:
                round_.find_receipt()
            if _is_left_alone(caller, round_, plan.output):
                return
            ended = RoundRun(caller, connect, round_, plan).run()
            is_temporary = daemon_use is not None and daemon_use.is_temporary
            RoundReport(caller, round_, plan, ended, _changes(found), is_temporary=is_temporary).conclude()
        finally:
            producer.close()


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Inputs and command line."""
    if "--" not in words:
        raise UsageError("opsq run needs -- before the program.", hint="For example: opsq run access.log -- wc -l")
    at = words.index("--")
    inputs, command = words[:at], words[at + 1 :]
    if not inputs:
        raise UsageError("opsq run needs an INPUT before --, or - for stdin.", hint="`opsq run --help` explains it.")
    if not command:
        raise UsageError("opsq run needs a program after --.", hint="`opsq run --help` explains it.")
    return inputs, command


def _check(path: str) -> None:
    """Check that an input can be read, before anything is started."""
    if path == STDIN:
        return
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InputUnreadable(f"{path} cannot be read: Is a directory.")
        if stat.S_ISREG(mode) and not os.access(path, os.R_OK):
            raise InputUnreadable(f"{path} cannot be read: Permission denied.")
    except OSError as error:
        is_program = "/" not in path and which(path) is not None
        hint = f"The program stands behind --: opsq run INPUT -- {path}" if is_program else ""
        raise InputUnreadable(f"{path} cannot be read: {error.strerror}.", hint=hint) from error


def _stamps(paths: list[str]) -> list[_Stamp]:
    """The inputs as they are now."""
    return [_Stamp(path, *_size_and_time(path)) for path in paths]


def _size_and_time(path: str) -> tuple[int, int] | tuple[None, None]:
    """Of a plain file, in bytes and nanoseconds; None twice for everything else."""
    if not is_plain(path):
        return None, None
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _changes(stamps: list[_Stamp]) -> list[str]:
    """The plain files among the inputs that have changed, each with what became of it: `log.txt changed`."""
    changed = dict.fromkeys(
        stamp.path for stamp in stamps if stamp.size_bytes is not None and stamp[1:] != _size_and_time(stamp.path)
    )
    return [f"{path} {'changed' if os.path.exists(path) else 'went away'}" for path in changed]


def _line(stamps: list[_Stamp], program: list[object], options: dict[str, Any]) -> dict[str, object]:
    """What makes a line the same: inputs with sizes and times, how they are cut, the program and the working folder."""
    inputs: list[list[object]] = []
    for path, size_bytes, time_ns in stamps:
        if size_bytes is None:
            inputs.append([os.fsencode(path)])
        else:
            inputs.append([os.fsencode(os.path.abspath(path)), size_bytes, time_ns])
    rest = {name: option for name, option in options.items() if option is not None}
    try:
        folder = os.fsencode(os.getcwd())
    except FileNotFoundError:  # it was removed, so no other folder can have its name
        folder = b""
    return {"folder": folder, "input": inputs, "program or splitting": program, "options": rest}


def _is_left_alone(caller: Caller, round_: Round, output: str | None) -> bool:
    """Tell what an earlier run has done; whether nothing is left to do."""
    finished_at = round_.finished_at
    if not finished_at:
        return False
    is_written = round_.is_written_to(output)
    rest = f"{output} is left as it is" if is_written else "writing its results again"
    caller.warn(f"This run was done at {caller.reworded(finished_at)}; {rest}.")
    if is_written:
        kept = list(map(str, round_.submissions))
        caller.document(
            RunDocument(
                state="completed",
                submissions=kept,
                completed=0,
                failed=0,
                released=0,
                dead=0,
                bytes=0,
                output=output or UNSET,
                finished_at=finished_at,
            )
        )
    return is_written


@contextlib.contextmanager
def _daemon(caller: Caller, key: bytes) -> Iterator[DaemonUse | None]:
    """A daemon to work with, and the lock of the round; None: the daemon is not ours to start and stop."""
    settings = caller.settings
    if is_addressed(settings) or settings.source("socket") == "--socket":
        yield None
        return
    daemon_use = DaemonUse(settings)
    try:
        daemon_use.claim(key)
        yield daemon_use.enter()
    finally:
        with contextlib.suppress(OpsqError):  # it stops by itself when it is not used
            daemon_use.leave()


def _connect(caller: Caller, daemon_use: DaemonUse | None) -> Connect:
    """What connects to the daemon; a temporary one is started again if it was killed."""

    def connect(*, name: str = "", claim: Claim | None = None) -> Connection:
        try:
            return caller.connect(name=name, claim=claim)
        except Unreachable:
            if daemon_use is None or not daemon_use.revive():
                raise
        return caller.connect(name=name, claim=claim)

    return connect


def _claiming(connect: Connect, key: bytes | None) -> Producer:
    """The producer of the round, with a claim that keeps the same round from running elsewhere at the same time."""
    claim = None if key is None else Claim(f"run {key.hex()}", os.urandom(16))
    try:
        return Producer(lambda: connect(name="", claim=claim), reconnect_s=RECONNECT_S)
    except NameTaken as error:
        raise run_conflict() from error
