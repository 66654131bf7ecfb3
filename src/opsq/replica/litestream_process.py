"""One run of Litestream beside a daemon: started, asked to copy, and ended with the daemon, however that ends.

It must not decide when to start another, nor what a copy is good for. Each run begins with a whole copy into a new
folder of the replica: what an earlier one missed, when nobody held the log for it, cannot be known from the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from opsq.errors import AlreadyRunning, StoreNotVisible
from opsq.replica.litestream import environment, find_litestream, write_config
from opsq.users import open_file

_FOLDER = "litestream"
_END_S = 15
_SCRIPT = f"""exec 3<&0
"$@" </dev/null 3<&- &
copier=$!
(
    read -r _ <&3
    kill -TERM "$copier"
    left={10 * _END_S}
    while [ $left -gt 0 ] && kill -0 "$copier"; do sleep 0.1; left=$((left - 1)); done
    kill -KILL "$copier"
) 2>/dev/null &
guard=$!
wait "$copier"
status=$?
kill "$guard"
exit "$status"
"""
"""Ends Litestream when its stdin ends: the daemon alone has the other end, so also when that is killed.

Litestream is told to end first: then it copies what is left. Without a store that takes it minutes.
"""
_LOCK_S = 20.0
_LOG_BYTES = 1 << 20
_STEP_S = 0.05
_QUERY = re.compile(r"\?\S+")


class LitestreamProcess:
    """Litestream while it runs.

    Args:
        state_dir: of the queue; this process has its lock.
        database: the path of its file.
        url: of the replica.
        epoch: of the owner; it stands in the name of the folder.

    Effects: what an earlier run left in the state folder is removed. Blocks while one of an earlier daemon still ends.

    Raises:
        CommandNotFound: Litestream is not installed.
        UsageError: the URL cannot hold a replica.
        AlreadyRunning: an earlier one does not end.
        StoreNotVisible: the system does not start it.
    """

    def __init__(self, state_dir: str, database: str, url: str, epoch: int) -> None:
        program = find_litestream()
        self.silences_count = 0
        """How many times in a row it has not answered, not even that it failed."""
        self.folder = f"{epoch:08d}-{secrets.token_hex(4)}"
        self._database = database
        self._home = Path(state_dir, _FOLDER)
        try:
            self._sockets = Path(tempfile.mkdtemp(prefix="opsq-"))  # a path that is short enough, whatever ours is
            try:
                self._start(program, url)
            except BaseException:
                shutil.rmtree(self._sockets, ignore_errors=True)
                raise
        except OSError as error:
            raise StoreNotVisible(f"Litestream cannot be started: {error}.") from error

    def _start(self, program: str, url: str) -> None:
        self._home.mkdir(0o700, exist_ok=True)
        lock_fd = self._lock()
        try:
            shutil.rmtree(self._home / "unsent", ignore_errors=True)
            self._socket = str(self._sockets / "litestream.sock")
            config = self._home / "litestream.yml"
            write_config(
                config,
                self._database,
                f"{url.rstrip('/')}/{self.folder}",
                meta_dir=str(self._home / "unsent"),
                socket=self._socket,
            )
            self._log = self._home / "litestream.log"
            log_fd = open_file(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.ftruncate(lock_fd, 0)
                command = [program, "replicate", "-config", str(config), "-no-expand-env"]
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _SCRIPT, "opsq-litestream", *command],
                    stdin=subprocess.PIPE,
                    stdout=log_fd,
                    stderr=log_fd,
                    env=environment(os.environ),
                    pass_fds=(lock_fd,),
                    process_group=0,
                )
            finally:
                os.close(log_fd)
            os.pwrite(lock_fd, str(self._process.pid).encode(), 0)
        finally:
            os.close(lock_fd)

    @property
    def pid(self) -> int:
        """The process, and the group of all that belongs to it."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def copy_now(self, timeout_s: float) -> None:
        """Return when everything that is committed now is in the replica. Blocks: not on an event loop.

        Raises:
            StoreNotVisible: that could not be done in time, or Litestream does not run.
        """
        self._shorten_log()
        until_s = time.monotonic() + timeout_s
        body = json.dumps({"path": self._database, "wait": True, "timeout": max(int(timeout_s), 1)})
        while True:
            connection = _UnixConnection(self._socket, timeout_s + 1.0)
            try:
                connection.request("POST", "/sync", body)
                answer = connection.getresponse()
                said = answer.read()
                self.silences_count = 0
                if answer.status == http.HTTPStatus.OK:
                    return
                raise StoreNotVisible(f"Litestream could not copy: {said.decode(errors='replace').strip()}.")
            except (OSError, http.client.HTTPException) as error:
                if not self.is_running:
                    raise StoreNotVisible(f"Litestream has ended: {self.last_words()}") from error
                if time.monotonic() > until_s:
                    self.silences_count += 1
                    raise StoreNotVisible(f"Litestream does not answer: {error}.") from error
                time.sleep(_STEP_S)  # it has only been started
            finally:
                connection.close()

    def _shorten_log(self) -> None:
        """Keep a long log beside it, and begin it anew; Litestream appends to it."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > _LOG_BYTES:
                shutil.copyfile(self._log, self._log.with_suffix(".log.1"))
                os.truncate(self._log, 0)

    def last_words(self) -> str:
        """What it wrote last to its log, without queries of URLs: they may be signed."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        if not lines:
            return f"see {self._log}."
        try:
            said = json.loads(lines[-1])
            text = f"{said.get('msg', '')}: {said['error']}" if said.get("error") else str(said.get("msg", lines[-1]))
        except (ValueError, AttributeError):
            text = lines[-1]
        return f"{_QUERY.sub('', text)[:500].rstrip('.')}."

    def end(self) -> None:
        """Have it copy what is left, and end. Blocks."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _lock(self) -> int:
        """The lock that Litestream inherits: one that a killed daemon has left behind still has it."""
        descriptor = open_file(self._home / "litestream.lock", os.O_RDWR | os.O_CREAT)
        until_s = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                left_s = until_s - time.monotonic()
                if left_s < 0:
                    os.close(descriptor)
                    raise AlreadyRunning(
                        f"A Litestream of an earlier daemon still copies {self._database}.",
                        hint=f"End it; to find it: fuser {self._home}/litestream.lock",
                    ) from error
                if left_s < _LOCK_S / 2:
                    with contextlib.suppress(OSError, ValueError):
                        os.killpg(int(os.pread(descriptor, 32, 0)), signal.SIGKILL)
                time.sleep(_STEP_S)
            else:
                return descriptor


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the socket by which Litestream is controlled."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
