"""A process that is forked while its parent has a queue open, and unwinds the parent's blocks when it ends."""

from __future__ import annotations

from pathlib import Path

import opsq
from daemons import running
from user_programs import Script

DEADLINE_S = 180

PROGRAM = """
import os, sys, warnings
import opsq
warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of forks

def fork(*calls):
    '''A child to which these calls are refused, and which ends then.'''
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return
    for call in calls:
        try:
            call()
        except opsq.errors.UsageError as error:
            assert "after a fork" in str(error), error
        else:
            sys.exit(f"{call} was not refused")
    sys.exit(7)

with %s as queue:
    with queue.consumer(on_lost=print) as consumer:
        name = consumer.name
        for number, chunk in enumerate(consumer.chunks()):
            fork()
            fork(chunk.complete, consumer.flush, lambda: consumer.reserve(1), queue.status, %s)
            chunk.complete(b"done")
            if number == 4:
                break
        assert consumer.name == name, "the connection was lost"
    for chunk in queue.consume():
        fork()
        chunk.complete(b"done")
"""


def test_child_that_ends_leaves_the_connections_of_its_parent(runtime_dir: Path, script: Script) -> None:
    with running(runtime_dir) as settings, opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"x"] * 10)
        program = script(PROGRAM % ("opsq.connect(sys.argv[1])", ""), settings.socket)
        output, errors = program.communicate(timeout=DEADLINE_S)
        assert (program.returncode, errors, output.split()) == (0, "", ["7"] * 15)
        assert list(submission.results()) == [b"done"] * 10


def test_child_that_ends_leaves_the_engine_of_its_parent(runtime_dir: Path, script: Script) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        submission_id = queue.submit([b"x"] * 10).id
    program = script(PROGRAM % ("opsq.Queue.open(sys.argv[1])", "queue.consumer"), runtime_dir)
    output, errors = program.communicate(timeout=DEADLINE_S)
    assert (program.returncode, errors, output.split()) == (0, "", ["7"] * 15)
    with opsq.Queue.open(runtime_dir) as queue:
        assert list(queue.submission(submission_id).results()) == [b"done"] * 10
        assert queue.check() == []
