"""Functions called in worker processes.

What they see, how they die, how they are stopped, and that none is left behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opsq
import worker_functions as zoo
from daemons import running
from opsq.client.core.outcome import Tally
from opsq.client.core.worker_process import main
from opsq.client.sync import child_process
from opsq.client.sync.connection import Connection
from opsq.errors import StoreNotVisible, UsageError, WorkFailed
from opsq.queue.policy import Policy
from opsq.settings import Settings
from user_programs import Script, is_there, number_in
from waiting import wait_until

DEADLINE_S = 180


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir, policy=Policy(heartbeat_s=0.2)) as queue:
        yield queue


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir, heartbeat_s="0.3") as settings:
        yield settings


def run(queue: opsq.Queue, f: Any = zoo.obedient, **options: Any) -> Tally:
    with queue.consumer("OldestFirst") as consumer:
        return consumer.run_each_chunk(f, mode="processes", **options)


def test_each_chunk_is_completed_in_another_process(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a"] * 40)
    assert run(queue, zoo.pid, jobs=2) == Tally(40, 0, 0)
    pids = {int(result) for result in submission.results()}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    assert not any(is_there(pid) for pid in pids)


def test_the_function_sees_what_a_chunk_is(queue: opsq.Queue) -> None:
    first = queue.submit([b"a", b"b"], metadata={"tenant": "x"}, attachment=b"how")
    second = queue.submit([b"c"])
    assert run(queue, zoo.told) == Tally(3, 0, 0)
    seen = [eval(result) for result in [*first.results(), *second.results()]]
    assert seen == [
        (first.id, 0, 0, f"{first.id}/0", {"tenant": "x"}, 2, b"a", b"how", b"how"),
        (first.id, 1, 0, f"{first.id}/1", {"tenant": "x"}, 2, b"b", b"how", b"how"),
        (second.id, 0, 0, f"{second.id}/0", {}, 1, b"c", None, None),
    ]


def test_large_chunks_and_results_go_through_the_store(settings: Settings) -> None:
    parts = [bytes([65 + number % 26]).lower() * 300_000 for number in range(20)]
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit(parts)
        assert run(queue, zoo.upper, jobs=2) == Tally(20, 0, 0)
        assert list(submission.results()) == [part.upper() for part in parts]


@pytest.mark.parametrize("name", ["bytes", "text", "json", "msgpack"])
def test_operations_go_round_in_every_format(queue: opsq.Queue, name: str) -> None:
    records: list[Any] = {"bytes": [b"1", b"3"], "text": ["ä", "z"]}.get(name, [1, "a\nb"])
    submission = queue.submit([opsq.serialisation.find(name).encode(records)])
    with queue.consumer() as consumer:
        assert consumer.run_each_operation(zoo.twice, serialisation=name, mode="processes") == Tally(1, 0, 0)
    assert [opsq.serialisation.find(name).decode(result) for result in submission.results()] == [
        [record * 2 for record in records]
    ]


def test_an_exception_comes_over_with_its_traceback(queue: opsq.Queue) -> None:
    submission = queue.submit([opsq.serialisation.find("json").encode([1, 0])], max_attempts=1)
    with queue.consumer() as consumer:
        assert consumer.run_each_operation(zoo.inverse, serialisation="json", mode="processes") == Tally(0, 1, 0)
    [dead] = submission.dead()
    assert dead.reason.startswith("ZeroDivisionError: division by zero (operation 2 of 2)\nTraceback")
    assert "in inverse" in dead.reason
    assert "opsq/client" not in dead.reason


def test_wishes_come_over(queue: opsq.Queue) -> None:
    submission = queue.submit([b"retry soon", b"bury it"], on_dead="keep", max_attempts=2, backoff=(3600, 1, 3600))
    assert run(queue) == Tally(0, 3, 0)
    assert [(dead.index, dead.attempts, dead.reason) for dead in submission.dead()] == [(0, 2, "soon"), (1, 1, "it")]


def test_a_worker_that_dies_costs_its_chunk_an_attempt_and_is_replaced(queue: opsq.Queue) -> None:
    chunks = [b"x", b"kill", b"x", b"exit 3", b"x", b"exit 0", b"x"]
    submission = queue.submit(chunks, on_dead="keep", max_attempts=1)
    assert run(queue) == Tally(4, 3, 0)
    killed, exited, ended = submission.dead()
    assert (killed.index, killed.attempts, killed.lost, killed.signal, killed.exit_status) == (
        1,
        1,
        0,
        signal.SIGKILL,
        None,
    )
    assert "was killed by SIGKILL" in killed.reason
    assert (exited.index, exited.signal, exited.exit_status) == (3, None, 3)
    assert "ended with exit status 3" in exited.reason
    assert (ended.index, ended.exit_status) == (5, 0)
    pids = [result for result in submission.results(skip_dead=True) if result]
    assert len(set(pids)) == 4


def test_a_dead_worker_is_noticed_although_a_child_keeps_its_pipe_open(queue: opsq.Queue, tmp_path: Path) -> None:
    submission = queue.submit([b"leave %s" % bytes(tmp_path / "child")], max_attempts=1)
    assert run(queue) == Tally(0, 1, 0)
    [dead] = submission.dead()
    assert dead.signal == signal.SIGKILL
    os.kill(number_in(tmp_path / "child"), signal.SIGKILL)


def test_a_chunk_that_takes_too_long_fails_and_its_worker_is_gone(queue: opsq.Queue, tmp_path: Path) -> None:
    submission = queue.submit([b"sleep %s" % bytes(tmp_path / "pid"), b"x"], on_dead="keep", max_attempts=1)
    assert run(queue, max_runtime_s=0.3) == Tally(1, 1, 0)
    [dead] = submission.dead()
    assert dead.reason == "The function ran for more than 0.3 s, so its process was killed."
    assert not is_there(number_in(tmp_path / "pid"))


def test_a_chunk_that_takes_too_much_memory_fails_and_its_worker_is_gone(queue: opsq.Queue, tmp_path: Path) -> None:
    submission = queue.submit([b"x", b"hog %s" % bytes(tmp_path / "pid"), b"x"], on_dead="keep", max_attempts=1)
    assert run(queue, max_memory_bytes=256 << 20) == Tally(2, 1, 0)
    [dead] = submission.dead()
    assert dead.reason == "The function used more than 256M of memory, so its process was killed."
    assert (dead.index, dead.signal) == (1, signal.SIGKILL)
    assert not is_there(number_in(tmp_path / "pid"))


def test_memory_that_short_chunks_take_together_ends_their_worker(
    queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them runs for as long as memory is left unmeasured, on a busy machine neither."""
    monkeypatch.setattr(child_process, "MEMORY_LOOK_S", 0.3)
    submission = queue.submit([b"leak"] * 400, on_dead="keep", max_attempts=1)
    tally = run(queue, max_memory_bytes=128 << 20)
    assert tally.failed_count > 0
    assert tally.completed_count + tally.failed_count == 400
    assert {dead.reason for dead in submission.dead()} == {
        "The function used more than 128M of memory, so its process was killed."
    }


def test_limits_of_a_process_are_refused_for_threads(queue: opsq.Queue) -> None:
    for limit in ({"max_runtime_s": 1.0}, {"max_memory_bytes": 1 << 30}):
        with (
            queue.consumer() as consumer,
            pytest.raises(UsageError, match=f"{next(iter(limit))} needs mode='processes'"),
        ):
            consumer.run_each_chunk(zoo.nothing, **limit)


def test_of_many_short_chunks_handed_over_at_once_only_the_one_that_kills_fails(queue: opsq.Queue) -> None:
    chunks = [b"kill" if number in (150, 151, 290) else b"x" for number in range(300)]
    submission = queue.submit(chunks, on_dead="keep", max_attempts=1)
    assert run(queue) == Tally(297, 3, 0)
    assert [(dead.index, dead.lost, dead.signal) for dead in submission.dead()] == [
        (index, 0, signal.SIGKILL) for index in (150, 151, 290)
    ]
    assert len(set(submission.results(skip_dead=True)) - {b""}) == 3  # one process has died at its first chunk


def test_an_exit_in_a_worker_fails_its_chunk(queue: opsq.Queue) -> None:
    submission = queue.submit([b"sysexit 7", b"x"], on_dead="keep", max_attempts=1)
    assert run(queue) == Tally(1, 1, 0)
    [dead] = submission.dead()
    assert dead.reason.startswith("SystemExit: 7")


def test_an_interrupt_in_a_worker_gives_all_back_and_is_raised(queue: opsq.Queue) -> None:
    submission = queue.submit([b"x", b"interrupt"])
    with pytest.raises(KeyboardInterrupt):
        run(queue)
    state = submission.state()
    assert (state.completed_count, state.reserved_count, state.delayed_count) == (1, 0, 0)


def test_a_store_that_cannot_be_seen_is_nobodys_failure(queue: opsq.Queue, runtime_dir: Path) -> None:
    submission = queue.submit([b"x" * 200_000] * 2)
    marker = next(path for path in (runtime_dir / "content").iterdir() if path.is_file())
    marker.write_text("another store")
    with pytest.raises(StoreNotVisible):
        run(queue, zoo.upper)
    state = submission.state()
    assert (state.reserved_count, state.delayed_count, state.dead_count) == (0, 0, 0)


# --- functions that cannot be called elsewhere ------------------------------------------------------------------------


def test_a_function_without_a_name_is_refused_before_anything_is_reserved(queue: opsq.Queue) -> None:
    submission = queue.submit([b"x"])
    with pytest.raises(UsageError, match="cannot be called in another process"):
        run(queue, lambda chunk: None)
    assert submission.state().reserved_count == 0


def test_a_program_without_a_guard_is_told_of_it(settings: Settings, tmp_path: Path, script: Script) -> None:
    text = """
import sys, opsq
def f(chunk): return b"done"
with opsq.connect(sys.argv[1]) as queue, queue.consumer() as consumer:
    consumer.run_each_chunk(f, mode="processes")
"""
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"x"])
        program = script(text, settings.socket)
        _, errors = program.communicate(timeout=DEADLINE_S)
        assert "WorkFailed: A worker process ended before it was ready" in errors
        assert "if __name__ == '__main__'" in errors.splitlines()[-1]
        assert submission.state().reserved_count == 0


PROGRAM = """
import sys, opsq
from worker_functions import obedient
def mine(chunk): return obedient(chunk)
if __name__ == "__main__":
    grace_s = float(sys.argv[2])
    with opsq.connect(sys.argv[1]) as queue, queue.consumer("OldestFirst") as consumer:
        print(consumer.run_each_chunk(
            mine, mode="processes", jobs=2, until_empty=False, grace_s=grace_s, on_interrupt="return").stop_signal)
"""


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_for_all", [False, True], ids=["to the program", "to the whole group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_workers_end_what_they_have_begun(
    settings: Settings, tmp_path: Path, script: Script, number: signal.Signals, is_for_all: bool
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"wait %s %s" % (bytes(begun), bytes(go))])
        program = script(PROGRAM, settings.socket, 60)
        worker = number_in(begun)

        def is_waiting() -> bool:
            return any(consumer.waiting_strategy for consumer in queue.status().consumers)

        wait_until(is_waiting, DEADLINE_S, "the second job waits for a chunk")
        (os.killpg if is_for_all else os.kill)(program.pid, number)
        wait_until(lambda: not is_waiting(), DEADLINE_S, "the signal was handled")
        later = queue.submit([b"x"])
        go.touch()
        output, errors = program.communicate(timeout=DEADLINE_S)
        assert (program.returncode, output.strip(), errors) == (0, str(int(number)), "")
        assert submission.state().state == "completed"
        assert later.state().completed_count == later.state().reserved_count == 0
        assert not is_there(worker)


def test_when_the_grace_is_over_the_function_may_clean_up_and_its_chunk_is_given_back(
    settings: Settings, tmp_path: Path, script: Script
) -> None:
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"clean %s %s" % (bytes(begun), bytes(cleaned))])
        program = script(PROGRAM, settings.socket, 0.1)
        worker = number_in(begun)
        program.terminate()
        output, errors = program.communicate(timeout=DEADLINE_S)
        assert (program.returncode, output.strip(), errors) == (0, str(int(signal.SIGTERM)), "")
        assert cleaned.exists()
        assert not is_there(worker)
        assert submission.state().reserved_count == 0
        with queue.consumer() as consumer:
            assert consumer.reserve(1).held_blocks[0].token.attempt == 0


@pytest.mark.parametrize("f", [zoo.obedient, zoo.awaited])
def test_a_worker_whose_consumer_has_gone_before_it_was_ready_ends_in_silence(
    settings: Settings, capfd: pytest.CaptureFixture[str], f: Any
) -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    with Connection.open(settings.socket) as connection:
        welcome = msgspec.msgpack.encode(connection.welcome)
    packed = child_process.program_of(f).packed
    worker = multiprocessing.get_context("spawn").Process(target=main, args=(theirs, packed, welcome))
    worker.start()
    worker.join(DEADLINE_S)
    assert worker.exitcode in {0, 1}  # 1: its reader was quicker
    assert capfd.readouterr().err == ""


def test_the_second_signal_ends_all_at_once(settings: Settings, tmp_path: Path, script: Script) -> None:
    stop = """
import os, pathlib, signal, threading
def stop():
    while not pathlib.Path(sys.argv[3]).exists():
        threading.Event().wait(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(0.1)  # what follows at once is an echo
    os.kill(os.getpid(), signal.SIGTERM)
"""
    begun = tmp_path / "begun"
    text = stop + PROGRAM.replace("    with", "    threading.Thread(target=stop, daemon=True).start()\n    with")
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"sleep %s" % bytes(begun)])
        program = script(text, settings.socket, 3600, begun)
        worker = number_in(begun)
        program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 128 + signal.SIGTERM
        assert not is_there(worker)
        assert submission.state().reserved_count == 0
        with queue.consumer() as consumer:
            assert consumer.reserve(1).held_blocks[0].token.attempt == 0


def test_no_worker_outlives_a_consumer_that_is_killed(settings: Settings, tmp_path: Path, script: Script) -> None:
    begun = tmp_path / "begun"
    with opsq.connect(settings.socket) as queue:
        queue.submit([b"sleep %s" % bytes(begun)])
        program = script(PROGRAM, settings.socket, 3600)
        worker = number_in(begun)
        program.kill()
        program.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not is_there(worker), DEADLINE_S, "the end of the worker")


def test_a_program_that_ends_without_waiting_for_its_run_leaves_no_worker(
    settings: Settings, tmp_path: Path, script: Script
) -> None:
    text = PROGRAM.replace("    with", "    import threading, pathlib, time\n    def work():\n      with").replace(
        "        print", "          print"
    )
    text += """
    threading.Thread(target=work, daemon=True).start()
    while not pathlib.Path(sys.argv[3]).exists():
        time.sleep(0.01)
"""
    begun = tmp_path / "begun"
    with opsq.connect(settings.socket) as queue:
        queue.submit([b"sleep %s" % bytes(begun)])
        program = script(text, settings.socket, 3600, begun)
        worker = number_in(begun)
        program.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not is_there(worker), DEADLINE_S, "the end of the worker")


def test_workers_run_beside_another_thread_of_the_program(queue: opsq.Queue) -> None:
    queue.submit([b"x"] * 10)
    tallies: list[Tally] = []
    threads = [threading.Thread(target=lambda: tallies.append(run(queue, zoo.nothing))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sum(tally.completed_count for tally in tallies) == 10


def test_a_worker_that_cannot_load_the_function_says_why(
    queue: opsq.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module that has it is there when the run begins, and not where the worker looks."""
    (tmp_path / "fleeting.py").write_text("def f(chunk): return b''\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import fleeting  # type: ignore[import-not-found]  # made above

    (tmp_path / "fleeting.py").write_text("raise ImportError('not today')\n")
    queue.submit([b"x"])
    with pytest.raises((UsageError, WorkFailed), match=r"cannot load the function\. ImportError: not today"):
        run(queue, fleeting.f)
