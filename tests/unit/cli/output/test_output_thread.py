"""The thread that says things: in order, without holding up who speaks, and with a word about what was left out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from opsq.cli.output import output_thread
from opsq.cli.output.output_thread import OutputThread
from waiting import wait_until


class Listener:
    """Takes what is written; while `reads` is not set nobody reads."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.reads = threading.Event()
        self.errors: dict[int, OSError] = {}

    def write(self, descriptor: int, content: bytes) -> None:
        self.reads.wait()
        if descriptor in self.errors:
            raise self.errors[descriptor]
        self.heard.append((descriptor, content))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    found = Listener()
    monkeypatch.setattr(output_thread, "_write", found.write)
    yield found
    found.reads.set()


def test_all_is_said_in_order_before_it_closes(listener: Listener):
    spoken = OutputThread()
    spoken.out(b"1\n")
    spoken.err(b"2\n")
    spoken.err_lines(b"3\n")
    spoken.call(lambda: listener.heard.append((0, b"drawn")))
    assert listener.heard == []
    listener.reads.set()
    spoken.close()
    assert listener.heard == [(1, b"1\n"), (2, b"2\n"), (2, b"3\n"), (0, b"drawn")]


def test_close_with_a_limit_does_not_wait_for_who_does_not_read(listener: Listener):
    spoken = OutputThread()
    spoken.err(b"1\n")
    spoken.close(0.01)
    assert listener.heard == []


def test_one_that_never_spoke_closes_at_once(listener: Listener):
    OutputThread().close()


def test_lines_of_programs_are_left_out_past_the_limit_and_that_is_said(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
):
    """What opsq itself says is kept."""
    monkeypatch.setattr(output_thread, "WAITING_LIMIT_BYTES", 10)
    spoken = OutputThread()
    spoken.err_lines(b"12345678\n")
    spoken.err_lines(b"a\nb\n")
    spoken.err_lines(b"c\n")
    spoken.err(b"opsq: failed\n")
    listener.reads.set()
    spoken.close()
    assert [content for _, content in listener.heard] == [
        b"12345678\n",
        b"opsq: failed\n",
        b"opsq: 3 lines of programs are missing here: they were not read in time.\n",
    ]


def test_it_is_congested_while_much_waits_and_until_half_of_that_is_read(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output_thread, "CONGESTED_BYTES", 10)
    spoken = OutputThread()
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        spoken.err_lines(b"four", lambda content, gate=gate: gate.wait())
    assert spoken.is_congested
    gates[0].set()
    wait_until(lambda: spoken._waiting_bytes == 8, what="one is read")
    assert spoken.is_congested
    gates[1].set()
    wait_until(lambda: spoken._waiting_bytes == 4, what="two are read")
    assert not spoken.is_congested
    gates[2].set()
    spoken.close()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(28, "No space left on device")])
def test_stdout_that_fails_is_left_alone_from_then_on_and_the_rest_goes_on(listener: Listener, error: OSError):
    listener.errors[1] = error
    listener.reads.set()
    spoken = OutputThread()
    spoken.out(b"1\n")
    spoken.err(b"2\n")
    wait_until(lambda: listener.heard, what="it goes on")
    listener.errors.clear()
    spoken.out(b"3\n")
    spoken.close()
    assert spoken.stdout_error is error
    assert listener.heard == [(2, b"2\n")]


def test_stderr_that_nobody_reads_any_more_is_no_failure(listener: Listener):
    listener.errors[2] = BrokenPipeError()
    listener.reads.set()
    spoken = OutputThread()
    spoken.err(b"1\n")
    spoken.out(b"2\n")
    spoken.close()
    assert listener.heard == [(1, b"2\n")]


def test_pipe_that_takes_only_some_now_gets_all_of_it_in_the_end():
    """Whoever shares our stderr with us has made it non-blocking."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    content = os.urandom(1 << 20)
    writer = threading.Thread(target=lambda: (output_thread._write(write_fd, content), os.close(write_fd)))
    writer.start()
    with open(read_fd, "rb") as reader:
        assert reader.read() == content
    writer.join()
