"""Programs of every temper run as children: each ends as it should, with its bytes whole, and leaves nothing behind.

All of it runs twice: with ends announced by descriptor (Linux), and found by looking (everywhere else).
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from opsq.errors import CommandNotExecutable, CommandNotFound, ContentChanged, Refused, StorageFull
from opsq.runner.process import process_group, supervisor
from opsq.runner.process.process_group import survivor
from opsq.runner.process.supervisor import Child, Finished, Output, Range, Supervisor
from waiting import wait_until

AWKWARD = b"\x00\xff\xfe caf\xe9\r\n\n\x1b[31m no newline at the end"


@pytest.fixture(params=[True, False], ids=["announced", "looked for"])
def children(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Supervisor]:
    """A set of children that spools into the runtime directory; no descriptor is left over when it is closed."""
    before = os.listdir("/dev/fd")
    with Supervisor(runtime_dir, use_pidfd=request.param) as made:
        yield made
    assert set(os.listdir("/dev/fd")) <= set(before)


def _end_of(children: Supervisor, child: Child, deadline_s: float = 60) -> Finished:
    """Wait for the one child that runs."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        for finished in children.poll(1):
            assert finished.child is child
            return finished
    raise AssertionError(f"not finished after {deadline_s} s")


def _run(children: Supervisor, argv: list[str], stdin: bytes | Range = b"") -> Finished:
    return _end_of(children, children.start(argv, stdin))


def _sh(children: Supervisor, script: str, stdin: bytes | Range = b"") -> Finished:
    return _run(children, ["sh", "-c", script], stdin)


def _python(script: str) -> list[str]:
    return [sys.executable, "-ISc", textwrap.dedent(script)]


def _poll_until(children: Supervisor, path: Path) -> None:
    """Keep the children going until a program has made `path`; none of them may finish before."""

    def is_there() -> bool:
        assert not children.poll(0.01)
        return path.exists()

    wait_until(is_there, 30, f"{path} exists")


def _taken(output: Output) -> bytes:
    content = output.memory if output.fd < 0 else os.pread(output.fd, output.length + 1, 0)
    output.close()
    return content


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """An ended orphan that nobody has reaped yet: whoever adopted it may take its time."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.strip() or state.startswith("Z")


# --- bytes ------------------------------------------------------------------------------------------------------------


def test_bytes_that_are_no_text_go_through_unchanged(children: Supervisor) -> None:
    finished = _run(children, ["cat"], AWKWARD)
    assert finished.is_success
    assert finished.stdout.memory == AWKWARD
    assert finished.run_s > 0


def test_program_that_writes_nothing_has_an_empty_output(children: Supervisor) -> None:
    finished = _run(children, ["true"], b"ignored")
    assert finished.is_success
    assert (finished.stdout.memory, finished.stdout.length, finished.stderr_tail) == (b"", 0, b"")


def test_long_range_with_header_is_read_after_its_owner_closed_it(children: Supervisor, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "content").write_bytes(content)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    child = children.start(["cat"], Range(fd, 1_001, 2_900_000, b"id,name\r\n"))
    os.close(fd)
    finished = _end_of(children, child)
    assert finished.is_success
    assert _taken(finished.stdout) == b"id,name\r\n" + content[1_001:2_901_001]


def test_output_of_200_mb_is_whole_and_leaves_no_name(children: Supervisor, runtime_dir: Path) -> None:
    finished = _run(children, ["head", "-c", "200000000", "/dev/zero"])
    assert finished.is_success
    assert finished.stdout.length == os.fstat(finished.stdout.fd).st_size == 200_000_000
    with open(finished.stdout.fd, "rb", closefd=False) as file:
        file.seek(0)
        assert hashlib.file_digest(file, "md5").hexdigest() == hashlib.md5(bytes(200_000_000)).hexdigest()
    finished.stdout.close()
    assert not list(runtime_dir.iterdir())


def test_program_that_closes_stdin_early_is_a_success(children: Supervisor) -> None:
    finished = _sh(children, "exec <&-; echo enough", b"x" * 10_000_000)
    assert finished.is_success
    assert finished.stdout.memory == b"enough\n"


def test_program_that_reads_slowly_gets_everything(children: Supervisor) -> None:
    slow = """
        import os, sys
        total = 0
        while piece := os.read(0, 1000):
            total += sum(piece)
        print(total)
    """
    finished = _run(children, _python(slow), bytes(range(256)) * 8_000)
    assert finished.stdout.memory == b"%d\n" % (sum(range(256)) * 8_000)


def test_program_that_writes_before_it_reads_is_not_stuck(children: Supervisor) -> None:
    """Both pipes full at once: whoever waited for one of them would wait for ever."""
    finished = _sh(children, "head -c 3000000 /dev/zero; cat", b"x" * 3_000_000)
    assert _taken(finished.stdout) == bytes(3_000_000) + b"x" * 3_000_000


def test_megabytes_on_stderr_leave_their_tail(children: Supervisor) -> None:
    finished = _sh(children, "head -c 5000000 /dev/zero | tr '\\0' e >&2; echo last words >&2; exit 3")
    assert finished.exit_status == 3
    assert finished.stderr_tail == b"e" * (4096 - 11) + b"last words\n"
    assert finished.reason.endswith("eelast words")


def test_many_programs_at_once_keep_their_bytes_apart(children: Supervisor) -> None:
    chunks = [b"%d\n" % number * (1 + number * 997 % 40_000) for number in range(40)]
    expected: dict[Child, bytes] = {}
    waiting = list(chunks)
    while waiting or expected:
        while waiting and len(expected) < 20:
            chunk = waiting.pop()
            expected[children.start(["cat"], chunk)] = chunk
        for finished in children.poll(60):
            assert _taken(finished.stdout) == expected.pop(finished.child)
    assert len(children) == 0


# --- what a child is given --------------------------------------------------------------------------------------------


def test_child_has_three_streams_and_nothing_else(children: Supervisor, runtime_dir: Path) -> None:
    """Not what our caller left open either."""
    list_them = """
        import os
        for fd in range(256):
            try: os.fstat(fd)
            except OSError: continue
            print(fd)
    """
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    with Supervisor(runtime_dir) as others:
        others.start(["cat"], b"x" * 10_000_000)
        finished = _run(children, _python(list_them), b"chunk")
    os.close(inherited)
    assert finished.stdout.memory == b"0\n1\n2\n"


def test_environment_is_the_one_that_is_given(children: Supervisor) -> None:
    child = children.start(["env"], env={"PATH": os.environ["PATH"], "OPSQ_CHUNK": "7é"})
    lines = _end_of(children, child).stdout.memory.decode().splitlines()
    assert "OPSQ_CHUNK=7é" in lines
    assert not any(line.startswith("HOME=") for line in lines)


def test_caller_keeps_its_stdin() -> None:
    """A program that reads everything, run by a process in the middle of `while read`, takes nothing from the loop."""
    script = """
        import os, sys
        from opsq.runner.process.supervisor import Supervisor
        with Supervisor("/tmp") as children:
            for stdin in (b"", b"chunk"):
                children.start(["cat"], stdin)
                while not (ended := children.poll()): pass
                print(ended[0].stdout.memory)
        print(os.read(0, 100))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], input=b"the loop's", capture_output=True)
    assert ran.stdout.splitlines() == [b"b''", b"b'chunk'", b'b"the loop\'s"'], ran.stderr


def test_children_of_a_process_without_streams_have_theirs(runtime_dir: Path) -> None:
    """Started with stdin, stdout and stderr closed, as some supervisors do.

    Several at once, so that numbers are reused.
    """
    result = runtime_dir / "result"
    script = f"""
        import os
        from pathlib import Path
        from opsq.runner.process.supervisor import Supervisor
        with Supervisor({str(runtime_dir)!r}) as children:
            seen = {{f"0 to 2 are {{[os.path.samestat(os.fstat(fd), os.stat('/dev/null')) for fd in range(3)]}}"}}
            for turn in range(30):
                children.start(["sh", "-c", "cat; echo said >&2"], b"chunk" if turn % 3 else b"")
                while len(children) > turn % 4:
                    seen |= {{f"{{ended.stdout.memory}} {{ended.reason}}" for ended in children.poll()}}
            while children:
                seen |= {{f"{{ended.stdout.memory}} {{ended.reason}}" for ended in children.poll()}}
        Path({str(result)!r}).write_text("\\n".join(sorted(seen)))
    """
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(closed, check=True)
    assert result.read_text().splitlines() == [
        "0 to 2 are [True, True, True]",
        "b'' exit status 0: said",
        "b'chunk' exit status 0: said",
    ]


def test_program_dies_of_sigpipe_as_from_a_shell(children: Supervisor) -> None:
    """What Python ignores for itself is not handed down."""
    assert _sh(children, "kill -PIPE $$; echo alive").signal == signal.SIGPIPE


def test_blocked_signals_are_not_blocked_in_the_program(children: Supervisor) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        finished = _sh(children, "kill -USR1 $$; echo alive")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert finished.signal == signal.SIGUSR1


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_program_that_exits_1_fails_with_what_it_said(children: Supervisor) -> None:
    finished = _sh(children, "echo partial; echo no such record >&2; exit 1")
    assert not finished.is_success
    assert (finished.exit_status, finished.signal, finished.error) == (1, None, None)
    assert finished.reason == "exit status 1: no such record"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV"])
def test_program_killed_by_a_signal_fails_and_the_signal_is_named(children: Supervisor, name: str) -> None:
    finished = _sh(children, f"kill -{name.removeprefix('SIG')} $$")
    assert not finished.is_success
    assert finished.signal == getattr(signal, name)
    assert finished.exit_status is None
    assert finished.reason.startswith(f"killed by {name}")


def test_program_killed_from_outside_is_no_success_whatever_it_wrote(children: Supervisor, tmp_path: Path) -> None:
    """As the kernel does when memory runs out."""
    child = children.start(["sh", "-c", f"echo whole result; touch {tmp_path}/ready; exec sleep 1000"])
    _poll_until(children, tmp_path / "ready")
    os.kill(child.pid, signal.SIGKILL)
    finished = _end_of(children, child)
    assert not finished.is_success
    assert finished.reason == "killed by SIGKILL"


def test_grandchild_that_holds_stdout_does_not_hold_the_chunk(children: Supervisor) -> None:
    finished = _sh(children, "sleep 1000 & echo $!")
    assert finished.is_success
    os.kill(int(finished.stdout.memory), signal.SIGKILL)


def test_grandchild_that_writes_for_ever_does_not_hold_the_chunk(children: Supervisor) -> None:
    """And dies of a broken pipe, since nobody reads any more."""
    finished = _sh(children, "yes & echo $! >&2")
    assert finished.is_success
    finished.stdout.close()
    wait_until(lambda: _is_gone(int(finished.stderr_tail)), 180, "the writer has ended")


def test_last_words_are_kept_when_the_end_is_seen_before_them(children: Supervisor) -> None:
    """The pipes stay open in a grandchild, and nothing was read before the end."""
    child = children.start(["sh", "-c", "sleep 1000 & echo $!; head -c 60000 /dev/zero; echo last words >&2"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    children._look_at(child)
    finished = _end_of(children, child)
    assert finished.reason == "exit status 0: last words"
    grandchild, _, rest = finished.stdout.memory.partition(b"\n")
    assert rest == bytes(60_000)
    os.kill(int(grandchild), signal.SIGKILL)


def test_ignored_sigchld_does_not_hide_the_exit_status(runtime_dir: Path) -> None:
    """A caller may have left it ignored (`trap '' CHLD`); ends would go unnoticed."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Supervisor(runtime_dir) as children:
            assert _sh(children, "exit 3").exit_status == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


# --- being ended ------------------------------------------------------------------------------------------------------

DEEP = "sh -c \"sh -c 'echo $$ >&2; touch ready; sleep 1000; :'; :\"; :"
"""Three levels of shell, each with a reason to stay; the innermost says who it is."""


def _start_deep(children: Supervisor, folder: Path) -> Child:
    child = children.start(["sh", "-c", f"cd {folder}; {DEEP}"])
    _poll_until(children, folder / "ready")
    return child


def _has_group(child: Child) -> bool:
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return any(
        group == str(child.pid) and not state.startswith("Z")
        for group, state in (
            line.split()
            for line in subprocess.run(
                ["ps", "-axo", "pgid=,stat="], capture_output=True, text=True
            ).stdout.splitlines()
        )
    )


def test_terminate_reaches_three_levels_of_shell(children: Supervisor, tmp_path: Path) -> None:
    child = _start_deep(children, tmp_path)
    children.terminate(child)
    finished = _end_of(children, child)
    assert finished.signal == signal.SIGTERM
    assert _is_gone(int(finished.stderr_tail.split()[0]))
    assert not _has_group(child)


def test_program_that_ignores_term_ends_by_kill(children: Supervisor, tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/heard' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    child = children.start(["sh", "-c", script])
    _poll_until(children, tmp_path / "ready")
    children.terminate(child)
    _poll_until(children, tmp_path / "heard")
    children.kill(child)
    assert _end_of(children, child).signal == signal.SIGKILL


def test_terminated_group_has_ended_only_when_its_last_member_has(children: Supervisor, tmp_path: Path) -> None:
    """The program dies at once, its helper cleans up first: until then it is not finished, and can still be killed."""
    helper = f"trap 'while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo cleaned up; exit' TERM"
    script = f"({helper}; touch {tmp_path}/ready; while :; do sleep 0.01; done) & exec sleep 1000"
    child = children.start(["sh", "-c", script])
    _poll_until(children, tmp_path / "ready")
    children.terminate(child)
    wait_until(lambda: _is_gone(child.pid) or children.poll(0.01), 180)
    assert children.poll(0.05) == []
    (tmp_path / "go").touch()
    finished = _end_of(children, child)
    assert finished.signal == signal.SIGTERM
    assert finished.stdout.memory == b"cleaned up\n"


def test_helper_that_ignores_term_after_its_program_died_ends_by_kill(children: Supervisor, tmp_path: Path) -> None:
    script = f"(trap '' TERM; echo $(exec sh -c 'echo $PPID'); touch {tmp_path}/ready; sleep 1000; :) & exec sleep 1000"
    child = children.start(["sh", "-c", script])
    _poll_until(children, tmp_path / "ready")
    children.terminate(child)
    wait_until(lambda: _is_gone(child.pid) or children.poll(0.01), 180)
    assert children.poll(0.05) == []
    children.kill(child)
    finished = _end_of(children, child)
    assert finished.signal == signal.SIGTERM
    wait_until(lambda: not _has_group(child), 180, "the helper has ended")


def test_stopped_program_hears_terminate(children: Supervisor, tmp_path: Path) -> None:
    child = children.start(["sh", "-c", f"touch {tmp_path}/ready; kill -STOP $$; sleep 1000"])
    _poll_until(children, tmp_path / "ready")
    children.terminate(child)
    assert _end_of(children, child).signal == signal.SIGTERM


def test_finished_child_is_not_signalled(children: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may belong to a stranger by then."""
    child = children.start(["true"])
    _end_of(children, child)
    signalled: list[int] = []
    monkeypatch.setattr(supervisor, "signal_group", lambda _, number: signalled.append(number))
    children.terminate(child)
    children.kill(child)
    assert signalled == []


def test_error_found_after_the_end_signals_nobody(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output cannot be kept, the program has been waited for: its number may be a stranger's already."""
    signalled: list[int] = []
    monkeypatch.setattr(supervisor, "signal_group", lambda _, number: signalled.append(number))
    with Supervisor(runtime_dir / "gone", memory_bytes=10) as children:
        child = children.start(["sh", "-c", "sleep 1000 & echo $! >&2; head -c 60000 /dev/zero"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        children._look_at(child)
        finished = _end_of(children, child)
    os.kill(int(finished.stderr_tail), signal.SIGKILL)
    assert isinstance(finished.error, Refused)
    assert signalled == []


def test_program_is_finished_by_kill_though_a_descendant_cannot_be_reached(
    children: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that sudo started; it stands in the way of terminate, as it may be at work."""
    child = _start_deep(children, tmp_path)
    monkeypatch.setattr(supervisor, "survivor", lambda *_: "unreachable")
    children.terminate(child)
    wait_until(lambda: _is_gone(child.pid) or children.poll(0.01), 180)
    assert children.poll(0.05) == []
    children.kill(child)
    assert _end_of(children, child).signal == signal.SIGTERM


def test_survivor_has_the_number_of_its_group_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def listdir(path: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(process_group.os, "listdir", listdir)
    assert survivor(os.getpgrp()) == str(os.getpgrp())


def test_ended_orphans_that_nobody_waited_for_are_no_survivors() -> None:
    """In a container without a caring init they stay for ever."""
    living = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, setpgroup=0)
    ended = os.posix_spawn("/bin/sleep", ["sleep", "0"], os.environ, setpgroup=living)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    assert survivor(living)
    assert survivor(living, str(ended)) == survivor(living, str(living))
    os.kill(living, signal.SIGKILL)
    os.waitpid(living, 0)
    assert not survivor(living) or sys.platform != "linux"
    os.waitpid(ended, 0)
    assert not survivor(living)


def test_close_leaves_no_orphan(runtime_dir: Path, tmp_path: Path) -> None:
    with Supervisor(runtime_dir) as children:
        child = _start_deep(children, tmp_path)
        long = children.start(["sh", "-c", "head -c 9000000 /dev/zero; exec sleep 1000"], b"x" * 10_000_000)
    wait_until(lambda: not _has_group(child) and not _has_group(long), 180, "both groups have ended")
    assert _is_gone(child.pid)
    assert len(children) == 0


# --- what cannot be run -----------------------------------------------------------------------------------------------


def test_missing_command_is_not_found_and_leaves_nothing(children: Supervisor) -> None:
    with pytest.raises(CommandNotFound, match="There is no command 'no-such-program' in PATH"):
        children.start(["no-such-program"], b"chunk")
    assert len(children) == 0


def test_program_without_the_mode_is_not_executable(children: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    with pytest.raises(CommandNotExecutable, match="its mode does not allow it"):
        children.start([str(tmp_path / "program")])


def test_script_whose_interpreter_is_missing_is_not_executable(children: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/no/such/interpreter\n")
    (tmp_path / "program").chmod(0o755)
    with pytest.raises(CommandNotExecutable, match="its interpreter '/no/such/interpreter' does not exist"):
        children.start([str(tmp_path / "program")])


def test_program_whose_loader_is_missing_is_not_executable(
    children: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system then says that the program is not there."""

    def posix_spawn(path: str, *_: object, **__: object) -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    (tmp_path / "program").write_bytes(b"\x7fELF")
    (tmp_path / "program").chmod(0o755)
    monkeypatch.setattr(os, "posix_spawn", posix_spawn)
    with pytest.raises(CommandNotExecutable, match="what loads it does not exist"):
        children.start([str(tmp_path / "program")])


def test_arguments_past_the_limit_of_the_system_are_named(children: Supervisor) -> None:
    with pytest.raises(CommandNotExecutable, match="Argument list too long"):
        children.start(["true", "x" * 50_000_000])


def test_script_without_an_interpreter_line_is_run_by_the_shell(children: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "program").write_text("cat; echo $1\n")
    (tmp_path / "program").chmod(0o755)
    assert _run(children, [str(tmp_path / "program"), "argument"], b"chunk ").stdout.memory == b"chunk argument\n"


def test_program_that_vanishes_half_way_is_not_found(children: Supervisor, tmp_path: Path) -> None:
    """And one that moved within PATH is found again."""
    env = {"PATH": f"{tmp_path}/a:{tmp_path}/b:{os.environ['PATH']}"}
    program = tmp_path / "a" / "program"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    assert _end_of(children, children.start(["program"], b"1", env)).stdout.memory == b"1"
    program = program.rename(tmp_path / "b" / "program")
    assert _end_of(children, children.start(["program"], b"2", env)).stdout.memory == b"2"
    program.unlink()
    with pytest.raises(CommandNotFound):
        children.start(["program"], b"3", env)


def _start_many(children: Supervisor) -> None:
    for _ in range(1000):
        children.start(["sleep", "1000"], b"chunk")


def test_no_descriptor_left_refuses_one_more_and_keeps_the_others(children: Supervisor) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    child = children.start(["cat"], b"chunk")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 1, hard))
    try:
        with pytest.raises(Refused, match=r"Cannot start one more program: Too many open files.*ulimit"):
            _start_many(children)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert _end_of(children, child).stdout.memory == b"chunk"


def test_next_of_a_series_that_is_not_there_is_the_error_of_the_series(children: Supervisor, tmp_path: Path) -> None:
    finished = _end_of(children, children.start_series(iter([["true"], [str(tmp_path / "program")]])))
    assert isinstance(finished.error, CommandNotFound)
    assert not finished.is_success
    finished.stdout.close()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EIO], ids=errno.errorcode.get)
def test_no_process_left_for_the_next_of_a_series_is_an_error_of_ours(
    children: Supervisor, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Any other error of the system is not made one of these."""
    commands = children._launcher._commands
    usual, starts = commands.spawn, iter([True, False])

    def spawn(argv: Sequence[str | bytes], *others: Any) -> int:
        if next(starts):
            return usual(argv, *others)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(commands, "spawn", spawn)
    child = children.start_series(iter([["echo", "1"], ["echo", "2"]]))
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            _end_of(children, child)
        return
    finished = _end_of(children, child)
    assert isinstance(finished.error, Refused)
    assert "Resource temporarily unavailable" in finished.error.message
    assert not finished.is_success
    finished.stdout.close()


# --- what is not the program's fault ----------------------------------------------------------------------------------


def test_short_file_is_found_before_the_program_starts(children: Supervisor, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"12345")
    fd = os.open(tmp_path / "in.txt", os.O_RDONLY)
    with pytest.raises(ContentChanged, match="ends at byte 5"):
        children.start(["cat"], Range(fd, 0, 10, path="in.txt"))
    os.close(fd)


def test_file_cut_while_it_is_read_is_an_error_of_ours(children: Supervisor, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(bytes(10_000_000))
    fd = os.open(path, os.O_RDONLY)
    child = children.start(
        ["sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; cat"], Range(fd, 0, 10_000_000)
    )
    os.close(fd)
    os.truncate(path, 5_000_000)
    (tmp_path / "go").touch()
    finished = _end_of(children, child)
    assert isinstance(finished.error, ContentChanged)
    assert not finished.is_success
    finished.stdout.close()


def test_no_room_for_an_output_is_an_error_of_ours(children: Supervisor) -> None:
    """The limit of a file's size stands for a full disk; the program, which would have gone on, is ended."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, hard))
    try:
        finished = _run(children, ["yes"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finished.stdout.close()
    assert isinstance(finished.error, StorageFull)
    assert finished.signal == signal.SIGKILL
    assert not finished.is_success


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_poll_without_children_returns_at_once(children: Supervisor) -> None:
    assert children.poll() == []


def test_watched_descriptor_wakes_poll_until_it_is_unwatched(children: Supervisor) -> None:
    child = children.start(["sleep", "1000"])
    reader, writer = os.pipe()
    seen: list[bytes] = []
    children.watch(reader, lambda: seen.append(os.read(reader, 10)))
    os.write(writer, b"signal")
    wait_until(lambda: children.poll(1) or seen, 180)
    assert seen == [b"signal"]
    children.unwatch(reader)
    os.write(writer, b"again")
    assert children.poll(0) == []
    assert seen == [b"signal"]
    os.close(reader)
    os.close(writer)
    children.kill(child)
    assert _end_of(children, child).signal == signal.SIGKILL
