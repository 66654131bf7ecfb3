"""What runs for a chunk, with real programs: placeholders, files and variables, a run per record, and a zoo of servers.

Bytes, signals and groups of single programs are in test_process_zoo.py; the pool on top of this is in tests/acceptance.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsq.content.manifest import InputRange
from opsq.errors import (
    CommandNotFound,
    ContentChanged,
    NotFound,
    OpsqError,
    Refused,
    StorageFull,
    UsageError,
    WorkFailed,
)
from opsq.runner.feeding import per_record, record_arguments, server_pool
from opsq.runner.feeding.program_kinds import make_programs
from opsq.runner.feeding.programs import Child, Feeding, Finished, Programs, Setup
from opsq.runner.process.pipes import FREE_SHARE, OutputLimit, Range
from opsq.units import format_size
from waiting import wait_until

AWKWARD = b"\xff\xfe caf\xe9\r \x1b[31m $(echo no) 'x' *"


class FakeChunk:
    """As much of a chunk as a program is told of."""

    def __init__(
        self, index: int = 3, submission_id: int = 7, *, file_path: bytes | None = None, header: bytes = b""
    ) -> None:
        self.submission_id, self.index, self.attempt = submission_id, index, 1
        self.metadata = {"tenant": "acme", "a.b": 5}
        self.file_path = file_path
        self.header = header
        self.input: InputRange | None = None
        self.trace_context = None


class Consumer:
    """Makes `Programs` in a folder, and runs chunks with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attachments: dict[int, bytes] = {}
        self.fetched: list[int] = []
        self.programs: Programs | None = None

    def __call__(
        self,
        *command: str,
        jobs: int = 1,
        memory_bytes: int = 1 << 20,
        limit: OutputLimit = FREE_SHARE,
        completes: Callable[[int], bool] = lambda status: status == 0,
        **feeding: Any,
    ) -> Programs:
        """The programs of a command; those made before are closed."""
        self.close()
        self.programs = make_programs(
            command,
            Feeding(**feeding),
            Setup(
                str(self.folder),
                memory_bytes,
                consumer="night",
                jobs=jobs,
                attachment=self.fetch,
                completes=completes,
                limit=limit,
            ),
        )
        return self.programs

    def fetch(self, submission_id: int) -> bytes | None:
        """The attachment of a submission."""
        self.fetched.append(submission_id)
        return self.attachments.get(submission_id)

    @property
    def scratch(self) -> Path:
        """The private folder of the programs."""
        assert self.programs is not None
        return Path(self.programs._scratch.folder)

    def close(self) -> None:
        """Close what was made last; its folder is gone."""
        if self.programs is not None:
            scratch = self.programs._scratch._folder
            self.programs.close()
            self.programs = None
            assert not scratch or not os.path.exists(scratch)


@pytest.fixture
def consumer(runtime_dir: Path) -> Iterator[Consumer]:
    """A maker of programs; no descriptor is left over when all are closed."""
    before = os.listdir("/dev/fd")
    made = Consumer(runtime_dir)
    yield made
    made.close()
    assert set(os.listdir("/dev/fd")) <= set(before)


def _start(
    programs: Programs,
    stdin: bytes | Range = b"",
    chunk: FakeChunk | None = None,
    said: Callable[[bytes], object] | None = None,
) -> Child:
    as_chunk: Any = chunk or FakeChunk()
    return programs.start(as_chunk, stdin, said)


def _ends(programs: Programs, children: list[Child], deadline_s: float = 60) -> list[Finished]:
    """Wait for all of them; in their order."""
    ended: dict[Child, Finished] = {}
    end = time.monotonic() + deadline_s
    while len(ended) < len(children):
        assert time.monotonic() < end, f"not finished after {deadline_s} s"
        for finished in programs.poll(1):
            assert finished.child in children
            assert finished.child not in ended
            ended[finished.child] = finished
    return [ended[child] for child in children]


def _run(programs: Programs, stdin: bytes | Range = b"", chunk: FakeChunk | None = None) -> Finished:
    return _ends(programs, [_start(programs, stdin, chunk)])[0]


def _result(programs: Programs, stdin: bytes | Range = b"", chunk: FakeChunk | None = None) -> bytes:
    finished = _run(programs, stdin, chunk)
    assert finished.is_success, finished.reason
    return _taken(finished)


def _taken(finished: Finished) -> bytes:
    output = finished.stdout
    content = output.memory if output.fd < 0 else os.pread(output.fd, output.length + 1, 0)
    output.close()
    return content


def _python(script: str) -> list[str]:
    return [sys.executable, "-ISc", textwrap.dedent(script)]


def _is_gone(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.strip() or state.startswith("Z")


# --- placeholders, files, variables -----------------------------------------------------------------------------------


def test_program_knows_its_chunk_by_placeholders(consumer: Consumer) -> None:
    programs = consumer("printf", "%s\\n", "{id}", "{submission}-{index}", "{attempt}", "{}", "{ id}")
    assert _result(programs) == b"7/3\n7-3\n1\n{}\n{ id}\n"


def test_program_knows_its_chunk_by_variables(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a consumer around this one was told is not passed on."""
    monkeypatch.setenv("OPSQ_META_OUTER", "x")
    monkeypatch.setenv("OPSQ_ATTACHMENT", "/outer")
    monkeypatch.setenv("OPSQ_THEN", "/outer")
    monkeypatch.setenv("OPSQ_STATE_DIR", "/kept")
    programs = consumer("sh", "-c", "env | grep ^OPSQ | sort | sed 's,=/[^ ]*then,=/tmp/then,'")
    assert _result(programs).decode().split() == [
        "OPSQ_ATTEMPT=1",
        "OPSQ_CHUNK=3",
        "OPSQ_CONSUMER=night",
        "OPSQ_META_A_B=5",
        "OPSQ_META_TENANT=acme",
        "OPSQ_STATE_DIR=/kept",
        "OPSQ_SUBMISSION=7",
        "OPSQ_THEN=/tmp/then",
    ]
    assert b"OPSQ_CHUNK=9\n" in _result(programs, chunk=FakeChunk(9, 8))


def test_clean_environment_has_path_and_the_chunk_and_nothing_else(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSQ_STATE_DIR", "/ours")
    names = {line.split(b"=")[0] for line in _result(consumer("env", is_clean=True)).splitlines()}
    of_chunk = {
        b"OPSQ_ATTEMPT",
        b"OPSQ_CHUNK",
        b"OPSQ_CONSUMER",
        b"OPSQ_META_A_B",
        b"OPSQ_META_TENANT",
        b"OPSQ_SUBMISSION",
        b"OPSQ_THEN",
    }
    assert names == {b"PATH"} | of_chunk
    assert b"OPSQ_CHUNK=3\n" in _result(consumer("env", is_clean=True, each=True), b"A=1")


def test_chunk_comes_as_a_private_file_that_is_gone_afterwards(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", 'stat -c %a "$0" && cat "$0" && wc -c && ls "$(dirname "$0")"', "{in}")
    assert _result(programs, AWKWARD).split(b"\n", 1)[0] == b"600"
    assert AWKWARD + b"0\n" in _result(programs, AWKWARD)
    assert os.listdir(consumer.scratch) == []


def test_range_with_its_header_comes_as_a_file(consumer: Consumer, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "content").write_bytes(content)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    programs = consumer("cat", "{in}")
    child = _start(programs, Range(fd, 1000, 2_500_000, b"id,name\n"))
    os.close(fd)
    [finished] = _ends(programs, [child])
    assert _taken(finished) == b"id,name\n" + content[1000:2_501_000]


def test_chunk_that_is_a_file_in_place_comes_by_its_own_path(consumer: Consumer, tmp_path: Path) -> None:
    """So that a program sees its name and its extension; and no byte is copied."""
    path = tmp_path / "caf\udce9 {id}.mkv"
    path.write_bytes(b"film")
    programs = consumer("sh", "-c", 'cat "$0"; echo " $0"', "{in}")
    assert _result(programs, b"film", FakeChunk(file_path=os.fsencode(path))) == b"film " + os.fsencode(path) + b"\n"
    assert path.exists()


def test_result_is_taken_from_a_file(consumer: Consumer) -> None:
    """What the program says on stdout is then told as what it says on stderr is; and the file has no name any more."""
    said: list[bytes] = []
    programs = consumer("sh", "-c", 'echo chatter; tr a-z A-Z < "$0" > "$1"', "{in}", "{out}")
    [finished] = _ends(programs, [_start(programs, b"chunk", said=said.append)])
    assert (finished.is_success, _taken(finished), b"".join(said)) == (True, b"CHUNK", b"chatter\n")
    assert os.listdir(consumer.scratch) == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo said >&2", "it succeeded, but did not write {out}: said"),
        ('mkdir "$0"', "{out} is not a regular file"),
        ('mkfifo "$0"', "{out} is not a regular file"),
        ('ln -s /no/such/file "$0"', "it succeeded, but did not write {out}"),
    ],
)
def test_program_that_ends_well_without_its_file_has_failed(consumer: Consumer, script: str, reason: str) -> None:
    finished = _run(consumer("sh", "-c", script, "{out}"))
    assert isinstance(finished.error, WorkFailed)
    assert finished.reason == reason
    assert os.listdir(consumer.scratch) == []


def test_program_that_fails_keeps_its_status_whether_it_wrote_its_file_or_not(consumer: Consumer) -> None:
    """It may be a status that counts as done, with the result that there is."""
    finished = _run(consumer("sh", "-c", 'echo part > "$0"; exit 3', "{out}"))
    assert (finished.exit_status, finished.error, _taken(finished)) == (3, None, b"part\n")
    finished = _run(consumer("sh", "-c", "exit 3", "{out}"))
    assert (finished.exit_status, finished.error, _taken(finished)) == (3, None, b"")


def test_files_are_gone_however_a_program_ends(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", 'touch "$1"; kill -9 $$', "{in}", "{out}")
    assert _run(programs, b"x").signal == signal.SIGKILL
    assert os.listdir(consumer.scratch) == []
    with pytest.raises(CommandNotFound):
        _start(consumer("no-such-program", "{in}", "{out}"), b"x")
    assert os.listdir(consumer.scratch) == []


def test_full_disk_refuses_a_file_and_leaves_none(consumer: Consumer) -> None:
    import resource

    programs = consumer("cat", "{in}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageFull, match=r"A file for a program cannot be written in .*TMPDIR"):
            _start(programs, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(consumer.scratch) == []


def test_no_place_for_temporary_files_refuses_only_who_needs_one(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(Refused, match=r"No folder can be made .*Set TMPDIR"):
        _start(consumer("cat", "{in}"), b"x")
    assert _result(consumer("cat"), b"x") == b"x"


def test_nothing_is_made_before_a_program_is_started(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is left of a consumer that is killed while it waits for work."""
    monkeypatch.setattr("tempfile.tempdir", str(consumer.folder))
    consumer("cat", "{in}")
    assert os.listdir(consumer.folder) == []


def test_cut_range_is_changed_content_and_leaves_no_file(consumer: Consumer, tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"12345")
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    with pytest.raises(ContentChanged):
        _start(consumer("cat", "{in}"), Range(fd, 0, 10))
    os.close(fd)
    assert os.listdir(consumer.scratch) == []


# --- attachments ------------------------------------------------------------------------------------------------------


def test_attachment_is_a_file_written_once_for_a_submission(consumer: Consumer) -> None:
    consumer.attachments[7] = AWKWARD
    programs = consumer("sh", "-c", 'test "$0" = "$OPSQ_ATTACHMENT" && stat -c %a "$0" && cat "$0"', "{attachment}")
    assert [_result(programs, chunk=FakeChunk(number)) for number in range(3)] == [b"400\n" + AWKWARD] * 3
    assert consumer.fetched == [7]


def test_program_that_needs_an_attachment_fails_where_there_is_none(consumer: Consumer) -> None:
    finished = _run(consumer("cat", "{attachment}"))
    assert isinstance(finished.error, WorkFailed)
    assert "needs an {attachment}" in finished.reason


def test_program_is_told_where_its_chunk_comes_from(consumer: Consumer) -> None:
    """In words and in variables, byte for byte; those of an outer consumer are not passed on."""
    chunk = FakeChunk()
    chunk.input = InputRange(os.fsdecode(b"a \xff"), 2048, 10)
    script = 'test "$0" = "$OPSQ_INPUT" && printf %s "$0 $1 $OPSQ_OFFSET"'
    programs = consumer("sh", "-c", script, "{input}", "{offset}")
    assert _result(programs, chunk=chunk) == b"a \xff 2048 2048"
    assert _result(consumer("echo", "{input}:{offset}", each=True), b"x\n", chunk) == b"a \xff:2048 x\n"


@pytest.mark.parametrize("feeding", [{}, {"each": True}])
def test_program_that_needs_an_input_fails_where_there_is_none(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, feeding: dict[str, bool]
) -> None:
    monkeypatch.setenv("OPSQ_INPUT", "of an outer consumer")
    finished = _run(consumer("cat", "{input}", **feeding), b"x\n")
    assert isinstance(finished.error, WorkFailed)
    assert "needs an {input}" in finished.reason


def test_attachments_that_nobody_uses_are_removed(consumer: Consumer) -> None:
    """One that is in use stays, however many come after it."""
    consumer.attachments = {number: b"%d" % number for number in range(100)}
    programs = consumer("sh", "-c", f"while [ ! -e {consumer.folder}/go ]; do sleep 0.01; done; cat $OPSQ_ATTACHMENT")
    waiting = _start(programs, chunk=FakeChunk(0, 0))
    for number in range(1, 100):
        child = _start(programs, chunk=FakeChunk(0, number))
        programs.kill(child)
        _ends(programs, [child])
    assert len(os.listdir(consumer.scratch)) < 20
    (consumer.folder / "go").touch()
    assert _taken(_ends(programs, [waiting])[0]) == b"0"


def test_removed_submission_is_not_found(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(submission_id: int) -> bytes | None:
        raise NotFound

    monkeypatch.setattr(consumer, "fetch", gone)
    with pytest.raises(NotFound):
        _start(consumer("cat"))


# --- a run per record -------------------------------------------------------------------------------------------------


def test_each_record_is_the_last_argument_of_a_run(consumer: Consumer) -> None:
    programs = consumer("printf", "[%s]", each=True)
    assert _result(programs, b"a b\n\n" + AWKWARD + b"\nlast") == b"[a b][][" + AWKWARD + b"][last]"


def test_each_record_stands_wherever_it_is_asked_for(consumer: Consumer) -> None:
    """Also twice, within words, beside other placeholders; and what stands in a record is no placeholder."""
    programs = consumer("printf", "%s,", "<{}{}>", "{index}{}", "end", each=True)
    assert _result(programs, b"a\n{id}\n") == b"<aa>,3a,end,<{id}{id}>,3{id},end,"


def test_delimiter_ends_records(consumer: Consumer) -> None:
    assert _result(consumer("printf", "[%s]", each=True, separator=b"\0"), b"a\nb\0c\0") == b"[a\nb][c]"
    assert _result(consumer("printf", "[%s]", each=True, separator=b"--"), b"a-b--c") == b"[a-b][c]"


def test_header_is_no_record_and_is_no_argument(consumer: Consumer) -> None:
    assert _result(consumer("echo", each=True), b"id\n1\n2\n", FakeChunk(header=b"id\n")) == b"1\n2\n"


def test_runs_read_nothing_but_dev_null(consumer: Consumer) -> None:
    assert (
        _result(consumer("sh", "-c", "cat; readlink /proc/self/fd/0; echo $0", each=True), b"a\n") == b"/dev/null\na\n"
    )


@pytest.mark.parametrize("content", [b"", b"id\n"])
def test_chunk_without_records_runs_nothing_and_completes(consumer: Consumer, content: bytes) -> None:
    programs = consumer("false", each=True)
    assert _result(programs, content, FakeChunk(header=b"id\n" if content else b"")) == b""


def test_first_record_that_fails_fails_the_chunk_and_is_named(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", 'echo "$0"; echo "said $0" >&2; test "$0" != b', each=True)
    finished = _run(programs, b"a\nb\nc\n")
    assert (finished.exit_status, finished.error, _taken(finished)) == (1, None, b"a\nb\n")
    assert finished.reason == "record 2: exit status 1: said b"


def test_record_that_kills_its_program_is_named(consumer: Consumer) -> None:
    finished = _run(consumer("sh", "-c", 'test "$0" != b || kill -SEGV $$', each=True), b"a\nb\nc\n")
    assert (finished.signal, finished.reason) == (signal.SIGSEGV, "record 2: killed by SIGSEGV")


def test_records_of_a_long_range_are_read_after_its_owner_closed_it(consumer: Consumer, tmp_path: Path) -> None:
    lines = [b"%d" % number + b"x" * 50_000 for number in range(40)]
    (tmp_path / "content").write_bytes(b"\n".join(lines))
    programs = consumer("printf", "%.3s,", each=True)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    child = _start(programs, Range(fd, 0, (tmp_path / "content").stat().st_size))
    os.close(fd)
    assert _taken(_ends(programs, [child])[0]) == b"".join(line[:3] + b"," for line in lines)


def test_file_cut_between_two_runs_is_changed_content(consumer: Consumer, tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(b"".join(b"%d" % number + b"x" * 50_000 + b"\n" for number in range(40)))
    programs = consumer("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done", each=True)
    fd = os.open(path, os.O_RDONLY)
    child = _start(programs, Range(fd, 0, path.stat().st_size))
    os.close(fd)
    os.truncate(path, 1000)
    (tmp_path / "go").touch()
    finished = _ends(programs, [child])[0]
    assert isinstance(finished.error, ContentChanged)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"b\0c", "record 2: it contains a NUL byte"),
        pytest.param(b"x" * 200_000, "record 2: it is longer than an argument may be", id="long"),
    ],
)
@pytest.mark.parametrize("feeding", [{"each": True}, {"args_count": 1}])
def test_record_that_can_be_no_argument_fails_its_chunk(
    consumer: Consumer, record: bytes, reason: str, feeding: dict[str, Any]
) -> None:
    """Wherever it comes; those before it were run."""
    programs = consumer("printf", "%s,", **feeding)
    finished = _run(programs, b"a\n" + record + b"\nc\n")
    assert isinstance(finished.error, WorkFailed)
    assert finished.reason.startswith(reason)
    assert _taken(finished) == b"a,"
    finished = _run(programs, record)
    assert finished.reason.startswith(reason.replace("2", "1", 1))


def test_longest_argument_that_the_system_takes_is_taken(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", "echo ${#0}", each=True)
    longest = b"x" * min(record_arguments._WORD_BYTES, 200_000)
    assert _result(programs, longest) == b"%d\n" % len(longest)


def test_batches_have_as_many_records_as_are_asked_for(consumer: Consumer) -> None:
    assert _result(consumer("echo", args_count=2), b"a\nb\nc\n") == b"a b\nc\n"
    assert _result(consumer("echo", "-", "{}", "{index}", args_count=2), b"a\nb\nc\n") == b"- a b 3\n- c 3\n"


def test_batches_are_bounded_by_what_the_system_takes(consumer: Consumer) -> None:
    """Beside an environment of any length."""
    lines = b"".join(b"%d\n" % number for number in range(400_000))
    runs: list[bytes] = []
    programs = consumer(
        "sh", "-c", 'echo "$@" | tr " " "\\n"; echo run >&2', "sh", args_count=10**9, memory_bytes=1 << 23
    )
    [finished] = _ends(programs, [_start(programs, lines, said=runs.append)])
    assert finished.is_success, finished.reason
    assert b"".join(runs).count(b"run") > 1
    assert _taken(finished) == lines


def test_batch_that_fails_is_named_by_its_records(consumer: Consumer) -> None:
    finished = _run(consumer("sh", "-c", 'test "$0" != c', args_count=2), b"a\nb\nc\nd\ne\n")
    assert finished.reason == "records 3 to 4: exit status 1"


@pytest.mark.parametrize(
    ("command", "feeding", "match"),
    [
        (["cat", "{in}"], {"each": True}, "{in} is the file of a whole chunk"),
        (["cat", "{out}"], {"args_count": 3}, "{out} is the file"),
        (["echo", "x{}"], {"args_count": 3}, "one word of its own"),
        (["echo", "{}", "{}"], {"args_count": 3}, "one word of its own"),
        (["echo", "{id}"], {"server": "frames"}, "{id} belongs to one chunk"),
    ],
)
def test_placeholder_that_does_not_go_with_the_way_is_refused(
    consumer: Consumer, command: list[str], feeding: dict[str, Any], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        consumer(*command, **feeding)


def test_terminated_runs_are_no_success_though_the_present_one_exits_0(consumer: Consumer, tmp_path: Path) -> None:
    programs = consumer("sh", "-c", f"trap 'exit 0' TERM; touch {tmp_path}/$0; while :; do sleep 0.01; done", each=True)
    child = _start(programs, b"a\nb\n")
    wait_until(lambda: programs.poll(0.01) or (tmp_path / "a").exists())
    programs.terminate(child)
    finished = _ends(programs, [child])[0]
    assert not finished.is_success
    assert not (tmp_path / "b").exists()


def test_program_that_vanishes_between_two_records_is_not_found(consumer: Consumer) -> None:
    program = consumer.folder / "program"
    program.write_text("#!/bin/sh\nrm $0\n")
    program.chmod(0o755)
    finished = _run(consumer(str(program), each=True), b"a\nb\n")
    assert isinstance(finished.error, CommandNotFound)


def test_grandchild_of_a_run_holds_nothing_up(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", "sleep 1000 & echo $!", each=True)
    pids = _result(programs, b"a\nb\n").split()
    for pid in map(int, pids):
        os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2


def test_runs_of_a_chunk_write_megabytes_in_order(consumer: Consumer) -> None:
    programs = consumer(
        "sh", "-c", 'head -c 3000000 /dev/zero | tr "\\0" "$0"; head -c 1000000 /dev/zero >&2', each=True
    )
    assert _result(programs, b"a\nb\n") == b"a" * 3_000_000 + b"b" * 3_000_000


# --- records in several slots -----------------------------------------------------------------------------------------


def _gated(folder: Path) -> list[str]:
    """A program that tells that it has a record, writes it before and after its gate is opened.

    And exits with its last character.
    """
    return [
        "sh",
        "-c",
        (
            f'touch {folder}/begun-$0; echo "<$0"; '
            f'while [ ! -e {folder}/go-$0 ]; do sleep 0.01; done; echo "$0>"; exit ${{0#?}}'
        ),
    ]


def _open(folder: Path, *records: str) -> None:
    for record in records:
        (folder / f"go-{record}").touch()


def _begun(programs: Programs, folder: Path, count: int) -> set[str]:
    """Wait until so many runs were begun, and name their records."""
    wait_until(lambda: not programs.poll(0.01) and len(list(folder.glob("begun-*"))) >= count)
    return {path.name.removeprefix("begun-") for path in folder.glob("begun-*")}


def test_one_chunk_fills_all_slots_and_its_result_is_in_order(consumer: Consumer, tmp_path: Path) -> None:
    """The last is let end first; never more run than there are slots."""
    programs = consumer(*_gated(tmp_path), jobs=3, each=True)
    assert programs.slots_count == 1
    child = _start(programs, b"a0\nb0\nc0\nd0\n")
    assert programs.slots_count == 1
    assert _begun(programs, tmp_path, 3) == {"a0", "b0", "c0"}
    _open(tmp_path, "c0")
    assert _begun(programs, tmp_path, 4) == {"a0", "b0", "c0", "d0"}
    _open(tmp_path, "d0", "b0")
    wait_until(lambda: not programs.poll(0.01) and len(programs) == 1)
    assert programs.slots_count == 2
    _open(tmp_path, "a0")
    assert _taken(_ends(programs, [child])[0]) == b"".join(
        b"<%b\n%b>\n" % (record, record) for record in (b"a0", b"b0", b"c0", b"d0")
    )


def test_slots_that_a_chunk_leaves_free_are_those_of_the_next(consumer: Consumer, tmp_path: Path) -> None:
    programs = consumer(*_gated(tmp_path), jobs=2, each=True)
    first = _start(programs, b"a0\n")
    assert programs.slots_count == 2
    second = _start(programs, b"b0\nc0\n", FakeChunk(4))
    assert programs.slots_count == 2
    assert _begun(programs, tmp_path, 2) == {"a0", "b0"}
    _open(tmp_path, "a0")
    assert _taken(_ends(programs, [first])[0]) == b"<a0\na0>\n"
    assert _begun(programs, tmp_path, 3) == {"a0", "b0", "c0"}
    _open(tmp_path, "b0", "c0")
    assert _taken(_ends(programs, [second])[0]) == b"<b0\nb0>\n<c0\nc0>\n"


def test_of_records_that_fail_side_by_side_the_first_in_order_is_named(consumer: Consumer, tmp_path: Path) -> None:
    """Those that run are let end, no other is begun, and nothing of what comes behind the failure is in the result."""
    programs = consumer(*_gated(tmp_path), jobs=3, each=True)
    child = _start(programs, b"a0\nb3\nc4\nd0\n")
    _begun(programs, tmp_path, 3)
    _open(tmp_path, "c4")
    wait_until(lambda: not programs.poll(0.01) and len(programs) == 2)
    _open(tmp_path, "a0", "b3")
    finished = _ends(programs, [child])[0]
    assert (finished.exit_status, finished.reason) == (3, "record 2: exit status 3")
    assert _taken(finished) == b"<a0\na0>\n<b3\nb3>\n"
    assert not (tmp_path / "begun-d0").exists()


def test_statuses_that_are_a_good_end_are_gone_on_after(runtime_dir: Path) -> None:
    """The first of them that is not 0 is that of the chunk."""
    completing = {"completes": lambda status: status in {0, 3, 4}}
    programs = make_programs(
        ["sh", "-c", "echo $0; exit $0"],
        Feeding(each=True),
        Setup(str(runtime_dir), 100, consumer="x", jobs=1, attachment=lambda _: None, **completing),
    )
    for _ in range(2):
        finished = _run(programs, b"0\n4\n3\n0\n")
        assert (finished.exit_status, finished.error, _taken(finished)) == (4, None, b"0\n4\n3\n0\n")
        assert _run(programs, b"0\n3\n5\n0\n").reason == "record 3: exit status 5"
    programs.close()


def test_terminated_chunk_ends_all_its_runs(consumer: Consumer, tmp_path: Path) -> None:
    """It is no success, whatever their status is, as there are more records."""
    script = f"trap 'exit 0' TERM; touch {tmp_path}/begun-$0; while :; do sleep 0.01; done"
    programs = consumer("sh", "-c", script, jobs=2, each=True)
    child, other = _start(programs, b"a\nb\nc\n"), None
    _begun(programs, tmp_path, 2)
    programs.terminate(child)
    finished = _ends(programs, [child])[0]
    assert isinstance(finished.error, WorkFailed)
    assert not (tmp_path / "begun-c").exists()
    other = _start(programs, b"d\n", FakeChunk(4))
    programs.kill(child)
    programs.kill(other)
    assert _ends(programs, [other])[0].signal == signal.SIGKILL


def test_long_outputs_of_records_are_put_together(consumer: Consumer) -> None:
    programs = consumer("sh", "-c", 'head -c 300000 /dev/zero | tr "\\0" "$0"', jobs=2, memory_bytes=100_000, each=True)
    assert _result(programs, b"a\nb\nc\n") == b"a" * 300_000 + b"b" * 300_000 + b"c" * 300_000


def test_lines_that_records_say_side_by_side_stay_whole(consumer: Consumer) -> None:
    said: list[bytes] = []
    programs = consumer("sh", "-c", 'printf "%s-" "$0" >&2; printf "%s\\nrest" "$0" >&2', jobs=4, each=True)
    records = [b"%d" % number for number in range(40)]
    assert _ends(programs, [_start(programs, b"\n".join(records), said=said.append)])[0].is_success
    assert sorted(b"".join(said).replace(b"rest", b"").split()) == sorted(
        b"%b-%b" % (record, record) for record in records
    )


def test_many_short_runs_share_pipes(consumer: Consumer) -> None:
    """Ever more of them as they prove to be short; all of a chunk that is half done are ended by close."""
    programs: Any = consumer("echo", jobs=2, each=True)
    lines = b"".join(b"%d\n" % number for number in range(500))
    assert _result(programs, lines) == lines
    assert programs._run_s < 1
    _start(consumer("sh", "-c", "echo x; exec sleep 1000", jobs=2, each=True), lines)
    consumer.close()


def test_no_room_for_one_more_run_is_waited_out_while_others_run(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: Any = consumer("echo", jobs=2, each=True)
    start_series = programs._supervisor.start_series

    def refuse_the_second(*arguments: Any, **options: Any) -> Child:
        if len(programs._supervisor):
            raise Refused("Cannot start one more program.")
        return start_series(*arguments, **options)

    monkeypatch.setattr(programs._supervisor, "start_series", refuse_the_second)
    assert _result(programs, b"a\nb\nc\n") == b"a\nb\nc\n"


def test_chunk_whose_records_cannot_be_held_open_is_refused(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    programs = consumer("echo", each=True)
    monkeypatch.setattr(per_record, "ChunkRecords", full)
    with pytest.raises(Refused, match="one more chunk open: Too many open files"):
        _start(programs, b"a\n")


# --- servers ----------------------------------------------------------------------------------------------------------

ECHO = _python("""
    import sys
    chunks, answers = sys.stdin.buffer, sys.stdout.buffer
    for line in chunks:
        length, name, attempt, more = line.split(b" ", 3)
        chunk = chunks.read(int(length))
        answers.write(b"%d 0 %b\\n%b" % (len(chunk), name, chunk))
        answers.flush()
""")


def _frames(script: str) -> list[str]:
    """A server in shell: the script has $length, $name, $attempt and $more, and reads the chunk itself."""
    return ["sh", "-c", f"while read -r length name attempt more; do {script}; done"]


def test_server_is_started_once_and_answers_chunk_after_chunk(consumer: Consumer) -> None:
    programs = consumer(
        *_frames('head -c $length > /dev/null; set -- "$$ $name $attempt"; echo ${#1}; printf %s "$1"'), server="frames"
    )
    answers = [_result(programs, AWKWARD, FakeChunk(number)).split() for number in range(5)]
    assert [answer[1:] for answer in answers] == [[b"7/%d" % number, b"1"] for number in range(5)]
    assert len({answer[0] for answer in answers}) == 1


def test_server_gets_any_bytes_and_gives_any_back(consumer: Consumer, tmp_path: Path) -> None:
    """Chunks of all lengths around pipes and memory, from memory and from files, all under way at once."""
    sizes = [0, 1, 4096, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 3 << 20]
    content = os.urandom(sum(sizes))
    (tmp_path / "content").write_bytes(content)
    programs = consumer(*ECHO, server="frames", jobs=2, memory_bytes=100_000)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    children, expected, at = [], [], 0
    for number, size in enumerate(sizes):
        children.append(_start(programs, Range(fd, at, size, b"head"), FakeChunk(number)))
        children.append(_start(programs, content[at : at + size], FakeChunk(number)))
        expected += [b"head" + content[at : at + size], content[at : at + size]]
        at += size
    os.close(fd)
    assert [_taken(finished) for finished in _ends(programs, children)] == expected


def test_server_learns_metadata_and_attachment(consumer: Consumer) -> None:
    consumer.attachments[7] = b"model"
    programs = consumer(
        *_python("""
        import json, sys
        for line in sys.stdin.buffer:
            more = json.loads(line.split(b" ", 3)[3])
            answer = more["metadata"]["tenant"] + " " + open(more["attachment"]).read()
            print(len(answer), answer, sep="\\n", end="", flush=True)
        """),
        server="frames",
    )
    assert [_result(programs), _result(programs)] == [b"acme model"] * 2


def test_server_fails_one_chunk_and_stays_alive(consumer: Consumer) -> None:
    programs = consumer(
        *_frames("head -c $length > /dev/null; echo 7 $((${name#*/} % 2)); printf '%7s' $$"), server="frames"
    )
    failed, completed = _run(programs, b"x", FakeChunk(1)), _run(programs, b"x", FakeChunk(2))
    assert (failed.exit_status, failed.error, completed.is_success) == (1, None, True)
    assert failed.reason == f"exit status 1: {_taken(completed).decode().strip()}"
    assert _taken(failed).strip() == failed.reason.split()[-1].encode()


def test_slots_have_a_server_each(consumer: Consumer, tmp_path: Path) -> None:
    """Chunks go to the one that has least to do."""
    script = (
        f"head -c $length >/dev/null; touch {tmp_path}/$$; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo 0"
    )
    programs = consumer(*_frames(script), server="frames", jobs=3)
    children = [_start(programs, b"x", FakeChunk(number)) for number in range(6)]
    wait_until(lambda: programs.poll(0.01) or len(os.listdir(tmp_path)) == 3)
    (tmp_path / "go").touch()
    assert all(finished.is_success for finished in _ends(programs, children))
    assert len(os.listdir(tmp_path)) == 4


def test_quick_servers_get_several_chunks_at_once_and_slow_ones_do_not(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = consumer(*ECHO, server="frames")
    assert programs.slots_count == 1
    for _ in range(50):
        _result(programs, b"x")
    monkeypatch.setattr(programs, "_service_s", 0.001)
    assert programs.slots_count == 20
    monkeypatch.setattr(programs, "_service_s", 1e-9)
    assert programs.slots_count == server_pool._DEPTH_LIMIT
    monkeypatch.setattr(programs, "_service_s", 60.0)
    assert programs.slots_count == 1
    assert consumer("cat", server="records").slots_count == 1


@pytest.mark.parametrize(
    ("script", "exit_status", "number", "reason"),
    [
        ("echo why >&2; exit 3", 3, None, "server: exit status 3: why"),
        ("kill -SEGV $$", None, signal.SIGSEGV, "server: killed by SIGSEGV"),
        ("exit 0", 0, None, "server: it ended before it had answered"),
        (
            "echo hello; exec sleep 1000",
            None,
            signal.SIGKILL,
            "server: the server wrote 'hello' where the first line of an answer was expected",
        ),
        ("head -c 1 >/dev/null; echo 1; echo xyz; exec sleep 1000", 0, None, ""),
        ("echo 5; printf xx", 0, None, "server: it ended before it had answered"),
    ],
)
def test_server_that_fails_fails_the_chunk_that_it_had_and_is_started_anew(
    consumer: Consumer,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    exit_status: int | None,
    number: int | None,
    reason: str,
) -> None:
    """It fails on chunk 1 only; what waited in its pipe is given to the next one and succeeds."""
    monkeypatch.setattr(server_pool, "_PAUSE_MIN_S", 0.001)
    good = "head -c $length >/dev/null; echo 2; printf ok"
    programs = consumer(
        "sh",
        "-c",
        f"while read -r length name more; do if [ $name = 7/1 ]; then {script}; break; fi; {good}; done",
        server="frames",
    )
    children = [_start(programs, b"x", FakeChunk(index)) for index in range(4)]
    ended = _ends(programs, children)
    if reason:
        assert (ended[1].exit_status, ended[1].signal, ended[1].reason) == (exit_status, number, reason)
        assert not ended[1].is_success
    else:
        # It answered, and then too much: that is the next chunk's, and no answer to it.
        assert ended[1].is_success
        assert "the server wrote 'yz' where" in ended[2].reason
        ended.pop(2)
    assert [_taken(finished) for finished in (ended[0], *ended[2:])] == [b"ok"] * (len(ended) - 1)


def test_server_that_dies_at_once_each_time_is_started_ever_less_often(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    programs: Any = consumer("sh", "-c", "exit 9", server="frames")
    monkeypatch.setattr(server_pool, "_PAUSE_MIN_S", 0.001)
    monkeypatch.setattr(server_pool, "_PAUSE_MAX_S", 0.005)
    for number in range(5):
        assert _run(programs, b"x", FakeChunk(number)).exit_status == 9
        pauses.append(programs._slots[0].pause_s)
    assert pauses == [0.001, 0.002, 0.004, 0.005, 0.005]


@pytest.mark.parametrize("exit_status", [0, 3])
def test_server_that_ends_before_its_answer_fails_the_chunk_whatever_completes_others(
    consumer: Consumer, exit_status: int
) -> None:
    programs = consumer("sh", "-c", f"read line; exit {exit_status}", server="frames", completes={0, 3}.__contains__)
    assert _run(programs).reason == "server: it ended before it had answered"


def test_server_that_ends_after_each_answer_is_started_anew_without_a_pause(consumer: Consumer) -> None:
    programs: Any = consumer(
        "sh", "-c", "read -r length more; head -c $length > /dev/null; echo 1; printf x", server="frames"
    )
    for number in range(5):
        assert _result(programs, b"x", FakeChunk(number)) == b"x"
        wait_until(lambda: not programs.poll(0.01) and programs._slots[0].server is None)
        assert programs._slots[0].pause_s == 0


def test_chunk_at_which_server_after_server_ends_well_fails_all_the_same(consumer: Consumer) -> None:
    """The first one may have retired before it read that chunk; the second one has done nothing else."""
    script = "head -c $length >/dev/null; [ $name != 7/1 ] || exit 0; echo 2; printf ok"
    programs = consumer(*_frames(script), server="frames")
    ended = _ends(programs, [_start(programs, b"x", FakeChunk(index)) for index in range(4)])
    assert [finished.is_success for finished in ended] == [True, False, True, True]
    assert ended[1].reason == "server: it ended before it had answered"


@pytest.mark.parametrize("is_file", [False, True])
def test_server_that_closes_its_stdin_fails_its_chunk(
    consumer: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    monkeypatch.setattr(server_pool, "_DEAF_S", 0.01)
    programs = consumer("sh", "-c", "exec <&-; exec sleep 1000", server="frames")
    (tmp_path / "chunk").write_bytes(b"x" * 3_000_000)
    with (tmp_path / "chunk").open("rb") as file:
        finished = _run(programs, Range(file.fileno(), 0, 3_000_000) if is_file else file.read())
    assert (finished.signal, finished.reason) == (
        signal.SIGKILL,
        "server: it has closed its stdin, and neither answered nor ended",
    )


def test_server_that_writes_more_than_anybody_can_hold_is_killed_by_the_first_line(consumer: Consumer) -> None:
    finished = _run(consumer("yes", server="frames"))
    assert "where the first line of an answer was expected" in finished.reason


def test_server_that_reads_slowly_gets_everything(consumer: Consumer) -> None:
    programs = consumer(
        *_python("""
        import os, sys, time
        stdin = open(0, "rb", buffering=0)
        line = stdin.readline()
        left = int(line.split()[0])
        while left:
            left -= len(os.read(0, min(left, 100_000)))
            time.sleep(0.001)
        print(0, flush=True)
        """),
        server="frames",
    )
    assert _result(programs, b"x" * 3_000_000) == b""


def test_server_that_says_megabytes_on_stderr_is_not_held_up(consumer: Consumer) -> None:
    said: list[bytes] = []
    programs = consumer(*_frames("head -c $length >/dev/null; head -c 3000000 /dev/zero >&2; echo 0"), server="frames")
    _ends(programs, [_start(programs, b"x", said=said.append)])
    wait_until(lambda: programs.poll(0.01) or len(b"".join(said)) > 1_000_000)


def test_long_answers_take_no_memory(consumer: Consumer) -> None:
    programs = consumer(
        *_frames("head -c $length >/dev/null; echo 50000000; head -c 50000000 /dev/zero"), server="frames"
    )
    finished = _run(programs, b"x")
    assert (finished.stdout.memory, finished.stdout.length) == (b"", 50_000_000)
    assert os.fstat(finished.stdout.fd).st_size == 50_000_000
    finished.stdout.close()


def test_file_cut_while_it_is_written_is_the_fault_of_no_server(consumer: Consumer, tmp_path: Path) -> None:
    """The server that has half a frame is ended; the chunks around that one succeed."""
    path = tmp_path / "content"
    path.write_bytes(bytes(5_000_000))
    programs = consumer(*ECHO, server="frames")
    before = _start(programs, b"before", FakeChunk(0))
    fd = os.open(path, os.O_RDONLY)
    os.truncate(path, 2_000_000)
    child = _start(programs, Range(fd, 0, 5_000_000, path="in.txt"), FakeChunk(1))
    os.close(fd)
    after = _start(programs, b"after", FakeChunk(2))
    ended = _ends(programs, [before, child, after])
    assert isinstance(ended[1].error, ContentChanged)
    assert [_taken(ended[0]), _taken(ended[2])] == [b"before", b"after"]


def test_command_that_is_not_there_is_not_found_and_holds_no_chunk(consumer: Consumer) -> None:
    program = consumer.folder / "program"
    programs = consumer(str(program), server="frames")
    for _ in range(2):
        with pytest.raises(CommandNotFound):
            _start(programs, b"x")
    assert programs.poll(0) == []
    program.write_text("#!/bin/sh\nread -r length more; head -c $length >/dev/null; echo 0\n")
    program.chmod(0o755)
    assert _ends(programs, [_start(programs, b"y")])[0].is_success


def test_server_that_vanishes_half_way_is_told_with_the_next_chunk(consumer: Consumer) -> None:
    program = consumer.folder / "program"
    program.write_text("#!/bin/sh\nrm $0\nread -r length more; head -c $length >/dev/null; echo 0\n")
    program.chmod(0o755)
    programs = consumer(str(program), server="frames")
    first, second = _ends(programs, [_start(programs, b"x"), _start(programs, b"x", FakeChunk(4))])
    assert first.is_success
    assert isinstance(second.error, OpsqError)
    assert not isinstance(second.error, WorkFailed)


# --- servers that are ended -------------------------------------------------------------------------------------------


def _busy(folder: Path) -> list[str]:
    """A server that tells that it has a chunk, and answers when it is let go."""
    return _frames(
        f"head -c $length >/dev/null; touch {folder}/begun-${{name#*/}}; while [ ! -e {folder}/go ]; do sleep 0.01; "
        f"done; echo 0"
    )


def test_terminated_chunk_ends_its_server_and_the_others_are_asked_again(consumer: Consumer, tmp_path: Path) -> None:
    programs = consumer(*_busy(tmp_path), server="frames")
    first, second = _start(programs, b"x", FakeChunk(1)), _start(programs, b"x", FakeChunk(2))
    wait_until(lambda: programs.poll(0.01) or (tmp_path / "begun-1").exists())
    programs.terminate(first)
    assert _ends(programs, [first])[0].signal == signal.SIGTERM
    (tmp_path / "go").touch()
    assert _ends(programs, [second])[0].is_success


def test_chunk_that_was_not_written_yet_is_taken_out_without_harm(consumer: Consumer, tmp_path: Path) -> None:
    programs = consumer(*_busy(tmp_path), server="frames")
    first, second = _start(programs, b"x", FakeChunk(1)), _start(programs, b"x", FakeChunk(2))
    programs.terminate(second)
    assert not _ends(programs, [second])[0].is_success
    (tmp_path / "go").touch()
    assert _ends(programs, [first])[0].is_success
    programs.terminate(first)
    programs.kill(first)
    assert programs.poll(0) == []


def test_server_that_ignores_term_ends_by_kill(consumer: Consumer, tmp_path: Path) -> None:
    programs = consumer(
        "sh", "-c", f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.01; done", server="frames"
    )
    child = _start(programs, b"x")
    wait_until(lambda: programs.poll(0.01) or (tmp_path / "ready").exists())
    programs.terminate(child)
    assert programs.poll(0.05) == []
    programs.kill(child)
    assert _ends(programs, [child])[0].signal == signal.SIGKILL


def test_close_lets_idle_servers_end_by_themselves(consumer: Consumer, tmp_path: Path) -> None:
    """Their stdin ends, and they may clean up."""
    loop = _frames("head -c $length >/dev/null; echo 0")[2]
    _result(consumer("sh", "-c", f"{loop}; touch {tmp_path}/clean", server="frames"), b"x")
    consumer.close()
    assert (tmp_path / "clean").exists()


def test_close_ends_servers_that_do_not_end(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGTERM, and those that ignore that by SIGKILL, with all that they have started."""
    monkeypatch.setattr(server_pool, "_END_S", 0.05)
    answer = 'set -- "$$ $!"; echo ${#1}; printf %s "$1"'
    script = (
        f"trap '' TERM; sleep 1000 & read -r length more; head -c $length >/dev/null; {answer}; while :; do sleep "
        f"0.01; done"
    )
    pids = [int(pid) for pid in _result(consumer("sh", "-c", script, server="frames"), b"x").split()]
    consumer.close()
    for pid in pids:
        wait_until(lambda pid=pid: _is_gone(pid))


def test_close_at_once_waits_for_no_server(consumer: Consumer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that has nothing to do and would clean up is killed as well."""
    monkeypatch.setattr(server_pool, "_END_S", 1e9)
    loop = _frames("head -c $length >/dev/null; echo 0")[2]
    programs: Any = consumer(
        "sh",
        "-c",
        f"{loop}; touch {tmp_path}/asked; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done",
        server="frames",
    )
    _result(programs, b"x")
    pid = programs._slots[0].server.pid
    programs.close(at_once=True)
    assert _is_gone(pid)
    assert not (tmp_path / "asked").exists()
    consumer.programs = None


def test_close_kills_a_server_that_is_at_work(consumer: Consumer, tmp_path: Path) -> None:
    programs: Any = consumer(*_busy(tmp_path), server="frames")
    _start(programs, b"x", FakeChunk(1))
    wait_until(lambda: programs.poll(0.01) or (tmp_path / "begun-1").exists())
    pid = programs._slots[0].server.pid
    consumer.close()
    assert _is_gone(pid)


# --- servers of records -----------------------------------------------------------------------------------------------


def test_filter_that_does_not_hold_back_its_output_is_a_server(consumer: Consumer) -> None:
    """A record without a separator at the end of a chunk has none in the result; a header goes to no server."""
    programs = consumer("sed", "-u", "s/^/>/", server="records")
    assert _result(programs, b"a\n\nb\n") == b">a\n>\n>b\n"
    assert _result(programs, b"a\nb") == b">a\n>b"
    assert _result(programs, b"id\na\n", FakeChunk(header=b"id\n")) == b">a\n"
    assert _result(programs, b"") == b""
    assert (
        _result(programs, b"x" * 300_000 + b"\n" + b"y\n" * 100_000)
        == b">" + b"x" * 300_000 + b"\n" + b">y\n" * 100_000
    )


def test_separator_of_records_is_that_of_the_chunk(consumer: Consumer) -> None:
    assert _result(consumer("sed", "-u", "-z", "s/^/>/", server="records", separator=b"\0"), b"a\nb\0c") == b">a\nb\0>c"


def test_record_too_many_fails_the_chunk_and_the_next_gets_another_server(consumer: Consumer) -> None:
    programs = consumer(
        "sh",
        "-c",
        "read -r a; read -r b; [ $b = c ] && exec printf '%s\\n' $a $b; printf '%s\\n' $a $b $b; cat",
        server="records",
    )
    assert "more than the 2 records" in _run(programs, b"a\nb\n").reason
    assert _result(programs, b"a\nc\n") == b"a\nc\n"


def test_records_that_come_between_two_chunks_end_the_server(
    consumer: Consumer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    surplus = f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done; echo more; touch {tmp_path}/said"
    script = f"read -r line; echo $line; [ -e {tmp_path}/said ] || {{ {surplus}; }}; exec cat"
    programs = consumer("sh", "-c", script, server="records")
    assert _result(programs, b"a\n") == b"a\n"
    (tmp_path / "go").touch()
    wait_until((tmp_path / "said").exists)
    assert _result(programs, b"b\n") == b"b\n"
    assert "ended between two chunks: the server wrote 'more\\n', which nobody asked for" in caplog.text


def test_server_that_ends_with_records_owed_fails_the_chunk(consumer: Consumer) -> None:
    assert (
        _run(consumer("head", "-n", "1", server="records"), b"a\nb\n").reason
        == "server: it ended before it had answered"
    )


ENDLESS = [
    (("yes",), {}),
    (("sh", "-c", "yes > $0", "{out}"), {}),
    (("yes",), {"each": True}),
    (("yes",), {"args_count": 2}),
    (("sh", "-c", "echo 99999999999; yes"), {"server": "frames"}),
    (("sh", "-c", "yes | tr -d '\\n'"), {"server": "records"}),
]


@pytest.mark.parametrize("limit_bytes", [100_000, 3 << 20])
@pytest.mark.parametrize(("command", "feeding"), ENDLESS)
def test_program_that_writes_without_end_is_ended(consumer: Consumer, command, feeding, limit_bytes: int) -> None:
    programs = consumer(*command, limit=OutputLimit(limit_bytes), **feeding)
    finished = _run(programs, b"1\n2\n3\n")
    assert isinstance(finished.error, WorkFailed)
    assert f"it wrote more than {format_size(limit_bytes)} (--max-result)" in finished.reason
    finished.stdout.close()
    assert not len(programs)


@pytest.mark.parametrize(("command", "feeding"), ENDLESS)
def test_output_may_take_its_share_of_the_free_disk(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, command, feeding
) -> None:
    """Half of what is free, divided by the jobs, but no less than 64 MiB: here that."""
    free = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([512, 512, 10**6, 2000, 2000, *tuple(free)[5:]]))
    finished = _run(consumer(*command, jobs=2, memory_bytes=100_000, **feeding), b"1\n")
    assert "its share of the free disk" in finished.reason
    # A file that the program writes by itself counts as free too, at the moment when it is looked at.
    assert "{out}" in command or "more than 64.0 MiB" in finished.reason
    finished.stdout.close()


def test_output_of_exactly_the_limit_is_a_result(consumer: Consumer) -> None:
    finished = _run(consumer("head", "-c", "100000", "/dev/zero", limit=OutputLimit(100_000)))
    assert finished.is_success
    assert len(_taken(finished)) == 100_000


def test_records_wait_while_much_output_waits_for_that_of_an_earlier_one(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that later records write would be kept until an early one ends."""
    monkeypatch.setattr(per_record, "_WAITING_BYTES", 100_000)
    script = "case $0 in 0) while [ ! -e go ]; do sleep 0.05; done;; esac; echo $0 >> begun; head -c 60000 /dev/zero"
    programs = consumer("sh", "-c", f"cd {consumer.folder}; {script}", jobs=2, each=True)
    child = _start(programs, b"".join(b"%d\n" % number for number in range(20)))
    (work,) = programs._works.values()
    end = time.monotonic() + 120
    while work.waiting_bytes <= 100_000:
        assert not programs.poll(0.1)
        assert time.monotonic() < end
    for _ in range(3):
        programs.poll(0.1)
    assert len(work.children) == 1
    (consumer.folder / "go").touch()
    (finished,) = _ends(programs, [child])
    assert finished.is_success
    assert len(_taken(finished)) == 20 * 60_000
