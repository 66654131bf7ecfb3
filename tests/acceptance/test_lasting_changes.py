"""What many steps change is changed to its end, though the daemon is restarted or killed in between."""

import contextlib
import socket
import threading

import pytest


class Relay:
    """Stands between a client and the daemon, and calls `cut` once, at the request with a number.

    Args:
        path: where it listens.
        daemon: the socket of the daemon.
        number: of the request, the hello being 0.
        is_answered: whether the daemon has answered it by then; the client is not told in either case.
        cut: called in the middle; then the connection ends, and later ones are left alone.
    """

    def __init__(self, path, daemon, number, *, is_answered, cut):
        self.is_cut = False
        self._daemon, self._number, self._is_answered, self._cut = daemon, number, is_answered, cut
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as daemon:
            daemon.connect(self._daemon)
            number = 0
            while asked := client.recv(1 << 20):
                if number == self._number and not self.is_cut:
                    self.is_cut = True
                    if self._is_answered:
                        daemon.sendall(asked)
                        daemon.recv(1 << 20)
                    self._cut()
                    return
                daemon.sendall(asked)
                client.sendall(daemon.recv(1 << 20))
                number += 1


@pytest.fixture
def through(queue, runtime_dir):
    """Runs a command line whose daemon goes away in the middle of a request, and comes back."""
    with contextlib.ExitStack() as stack:

        def run(*words, number, is_answered, is_killed):
            def cut():
                if is_killed:
                    queue.kill_daemon()
                    queue.ok("start")
                else:
                    queue.ok("restart")

            path = str(runtime_dir / "relay")
            daemon = queue.ok("config", "--json").json
            settings = {each["name"]: each["value"] for each in daemon["settings"]}
            relay = Relay(path, settings["socket"], number, is_answered=is_answered, cut=cut)
            stack.callback(relay.close)
            ran = queue(*words, environ={"OPSQ_SOCKET": path})
            assert relay.is_cut, ran
            return ran

        yield run


WAYS = [
    {"number": number, "is_answered": is_answered, "is_killed": is_killed}
    for number, is_answered, is_killed in ((1, False, False), (2, True, True), (2, False, True), (2, True, False))
]


def dead_of(queue, count):
    """A submission whose chunks are all dead."""
    submission = queue.submit_lines(count, "--on-dead", "keep")
    handles = queue.ok("reserve", "-n", str(count)).lines
    queue.ok("fail", "--no-retry", *handles)
    return submission


@pytest.mark.parametrize("way", WAYS)
def test_submissions_are_cancelled_and_removed_to_the_last(queue, through, way):
    ids = [queue.submit_lines(1) for _ in range(3)]
    ran = through("cancel", "--all", "--json", **way)
    assert (ran.status, ran.json) == (0, {"count": 3}), ran
    assert queue.ok("list", "--state", "cancelled", "--json").json["next"] is None
    assert len(queue.ok("list", "--state", "cancelled").lines) == 3
    (queue.state_dir.parent / "relay").unlink()
    ran = through("rm", "--json", *ids, **way)
    assert (ran.status, ran.json) == (0, {"count": 3}), ran
    assert queue.ok("list").lines == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("verb", "state"), [("requeue", "waiting"), ("drop", "skipped")])
def test_dead_chunks_by_name_are_changed_to_the_last(queue, through, verb, state, way):
    """A second try finds some of them changed, and does not take them for a mistake."""
    first, second = dead_of(queue, 2), dead_of(queue, 1)
    ran = through("dead", verb, f"{first}/0", f"{first}/1", f"{second}/0", **way)
    assert ran.status == 0, ran
    assert "the daemon was restarted in between" in ran.err
    counts = [queue.ok("show", each, "--json").json for each in (first, second)]
    assert [(each["dead"], each[state]) for each in counts] == [(0, 2), (0, 1)]


@pytest.mark.parametrize("way", [way | {"number": 1} for way in WAYS])
def test_dead_chunks_by_condition_and_history_are_changed_to_the_last(queue, through, way):
    submission = dead_of(queue, 3)
    assert through("dead", "requeue", "--all", **way).status == 0
    assert queue.ok("show", submission, "--json").json["waiting"] == 3
    (queue.state_dir.parent / "relay").unlink()
    assert queue.ok("history", "list").lines != []
    assert through("history", "prune", "--keep", "0", **way).status == 0
    assert queue.ok("history", "list").lines == []


def test_refusal_of_the_next_daemon_is_the_error(queue, through):
    submission = queue.submit_lines(1)
    ran = through("rm", submission, number=1, is_answered=False, is_killed=False)
    assert ran.status == 5
    assert "Cancel it first" in ran.err
