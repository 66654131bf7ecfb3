"""The verb demo: the main job end to end, on input that every machine has, with a daemon that leaves nothing behind.

It does what a user would do, in the same ways; it must not use anything that a user cannot.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from opsq.cli.caller import Caller
from opsq.cli.demo_stage import Speech, direct_count, private_daemon, private_folder, sources
from opsq.cli.output.explanation import print_strategy
from opsq.cli.output.installation_documents import DemoDocument
from opsq.cli.output.result_writer import ResultStream, write_output
from opsq.cli.submission_end import failure_of, wait_for
from opsq.cli.submission_template import Template
from opsq.cli.upload import RoomDeadline, Upload
from opsq.content.splitter import Splitting
from opsq.errors import Bug, WorkFailed
from opsq.ids import SubmissionId
from opsq.options.option import Whole, option
from opsq.units import counted
from opsq.wire.messages import Explain, Explained, Show, Shown

STRATEGY = "OldestFirst"
CHUNK_BYTES = 32 << 10
_END_S = 20.0
_POLL_S = 0.2


def demo(
    caller: Caller,
    consumers: int = option("--consumers N", "How many consumers work at the same time, up to 64.", Whole(1, 64), 3),
    keep: bool = option("--keep", "Keep the folder for inspection."),
    spark: bool = option("--spark", "Show the same with PySpark: DataFrames, and executors as consumers."),
) -> None:
    """Run a demonstration: submit Python's own source files, have consumers convert them to upper case, collect and
    check the results.

    It takes less than a minute, with a daemon of its own in a temporary folder that is removed at the end.
    """
    if spark:
        from opsq.cli.spark.spark_demo import demo_spark

        demo_spark(caller, tasks=consumers, is_kept=keep)
        return
    say = Speech(caller)
    paths = sources()
    with private_folder(say, is_kept=keep) as folder, private_daemon(caller, say, folder) as private:
        began = time.monotonic()
        upload = Upload(private, Template().rules(), RoomDeadline.of(None))
        content, created = upload.hand_over(paths, Splitting("bytes", CHUNK_BYTES))
        submission_id = SubmissionId(created.submission_id)
        say.step(
            f"Submitted {len(paths)} source files of Python, {content.total_bytes / 1e6:.1f} MB,"
            f" in {counted(content.chunks_count, 'chunk')}."
        )
        command = _program()
        say.step(f"At work: {consumers} × opsq consume --until-empty -s {STRATEGY} -- {' '.join(command)}")
        _work(private, folder, command, consumers, submission_id)
        states = wait_for(private, [submission_id], _END_S)
        if failure := failure_of(private, states):
            raise failure
        worked_s = time.monotonic() - began
        output = folder / "results.txt"
        with private.connect() as daemon:
            write_output(ResultStream(daemon, submission_id, is_following=False, is_skipping=False), str(output))
            explained = daemon.call(Explain(daemon.next_id(), STRATEGY), Explained)
        elapsed_s = time.monotonic() - began
        say.step(f"All results are here, in input order: {output.stat().st_size / 1e6:.1f} MB.")
        wanted, found = direct_count(map(Path, paths), is_upper=True), direct_count([output], is_upper=False)
        if wanted != found:
            raise WorkFailed(f"The results are wrong: {found} instead of {wanted}.", hint="Please report this.")
        say.step(
            f"A direct count without opsq agrees: {counted(wanted.lines_count, 'line')}, SHA-256 {wanted.digest[:8]}…."
        )
        rate = content.chunks_count / worked_s
        say.step(
            f"{rate:.0f} chunks/s, {content.total_bytes / worked_s / 1e6:.1f} MB/s, a program started for each chunk."
        )
        say.step("How the chunks were chosen, as `opsq explain` shows it:")
        if not caller.is_quiet:
            print_strategy(caller, explained)
    caller.document(
        DemoDocument(
            len(paths), content.total_bytes, wanted.lines_count, content.chunks_count, elapsed_s, rate, is_right=True
        )
    )
    say.step(
        f"Done in {time.monotonic() - say.began:.1f} s."
        + ("" if keep else " The daemon has stopped; nothing is left behind.")
    )


def _program() -> list[str]:
    """A program that makes letters upper-case: tr, or this Python where tr is missing."""
    if shutil.which("tr"):
        return ["tr", "a-z", "A-Z"]
    return [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read().upper())"]


def _work(caller: Caller, folder: Path, command: list[str], count: int, submission_id: SubmissionId) -> None:
    """Run consumers in processes of their own until each finds nothing more to do, and show progress."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    environ |= {"OPSQ_STATE_DIR": str(folder / "state"), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C"}
    words = [sys.executable, "-m", "opsq", "consume", "--until-empty", "-s", STRATEGY, "--", *command]
    with (folder / "consumers.log").open("w+b") as log:
        children: list[subprocess.Popen[bytes]] = []
        try:
            # One by one: those that are started are ended too, whenever the signal comes.
            children.extend(
                subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                for _ in range(count)
            )
            _watch(caller, children, submission_id)
        finally:
            for child in children:
                child.terminate()
            statuses = [child.wait() for child in children]
        if any(statuses):
            log.seek(0)
            raise Bug(f"A consumer ended with {max(statuses)}: {log.read().decode(errors='replace').strip()}")


def _watch(caller: Caller, children: list[subprocess.Popen[bytes]], submission_id: SubmissionId) -> None:
    """Draw what has been done until all `children` have ended."""
    with caller.connect() as daemon, caller.progress() as progress:
        bar = progress.add_task("working", total=None) if progress else None
        while working := [child for child in children if child.poll() is None]:
            state = daemon.call(Show(daemon.next_id(), submission_id), Shown).submission
            if progress:
                progress.update(bar, total=state.chunks_count, completed=state.completed_count)
            with contextlib.suppress(subprocess.TimeoutExpired):
                working[0].wait(_POLL_S)
