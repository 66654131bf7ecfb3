"""Opens and removes the sockets that the daemon listens on: bound here, or inherited from a service manager.

This file must not accept or read anything. The caller holds the lock of the state folder, so a socket that does not
answer is stale and may be replaced; a live one never is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import NamedTuple

from opsq.errors import AlreadyRunning, Conflict, NotPermitted, OpsqError, UsageError
from opsq.filesystem import is_no_room
from opsq.paths import short_socket_owner
from opsq.settings import Settings
from opsq.store.database_file import full_disk
from opsq.units import format_address, split_address
from opsq.users import ROOT, is_trusted, may_others_change, open_file

BACKLOG = 128
_FIRST_INHERITED = 3


class Place(NamedTuple):
    """Where a Unix socket is to be: its path, its mode, and the state folder, whose owner and group it belongs to."""

    path: str
    mode: int
    state_dir: str


class ListeningSocket:
    """A listening socket; `close` also removes its path, if that is still the one we bound.

    Args:
        place: where we bound a Unix socket; None: it is not ours to remove or to make again.
    """

    def __init__(self, listener: socket.socket, *, place: Place | None = None, lock_fd: int = -1) -> None:
        self.socket = listener
        self._place = place
        self._lock_fd = lock_fd
        self._inode = _inode(place.path) if place else None

    @property
    def is_tcp(self) -> bool:
        """Whether it is a TCP socket."""
        return self.socket.family != socket.AF_UNIX

    @property
    def name(self) -> str:
        """The address, for people."""
        name = self.socket.getsockname()
        return format_address(*name[:2]) if self.is_tcp else str(name)

    def renew(self) -> bool:
        """Listen at the path again if its file is gone; whether that was so, and `socket` is another one now.

        Raises:
            OpsqError: it is gone, and cannot be made again; or another file is there.
        """
        if self._place is None or (found := _inode(self._place.path)) == self._inode:
            return False
        if found is not None:
            raise Conflict(
                f"{self._place.path} was replaced by another file.",
                hint="Find out what replaced it, and remove that file.",
            )
        if os.path.dirname(self._place.path) != self._place.state_dir:
            _make_folder(self._place)
        self.socket = _listen(self._place)
        self._inode = _inode(self._place.path)
        return True

    def close(self) -> None:
        """Stop listening. Effects: the path is unlinked unless it was inherited, or is another socket now."""
        place, self._place = self._place, None
        if place is not None and self._inode is not None and _inode(place.path) == self._inode:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.path)
        self.socket.close()
        if place is not None and self._lock_fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(f"{place.path}.lock")
            os.close(self._lock_fd)


def open_all(settings: Settings) -> list[ListeningSocket]:
    """Open every socket that the settings and the service manager request: one Unix socket, and TCP if wanted.

    Raises:
        AlreadyRunning: another process answers at the path of the Unix socket.
        UsageError: more than one socket was inherited, or one that contradicts an explicit setting; an address that
            other machines can reach without `listen_force`; TLS is wanted without a certificate, or
            without TCP.
        NotPermitted, Conflict: the system refuses the address.
    """
    for name in ("tls_key_file", "tls_client_ca_file"):
        if getattr(settings, name) and not settings.tls_cert_file:
            raise UsageError(
                f"{name} is set, but tls_cert_file is not: TCP would not be encrypted.",
                hint="Give the daemon's certificate with --tls-cert-file.",
            )
    inherited = take_inherited()
    if settings.tls_cert_file and not settings.listen and (inherited is None or inherited.family == socket.AF_UNIX):
        raise UsageError(
            "tls_cert_file is set, but listen is not: nothing would speak TLS.",
            hint="Give the address with --listen HOST:PORT, or leave the certificate out.",
        )
    bound: list[ListeningSocket] = []
    try:
        if inherited is not None:
            bound.append(_accept_inherited(inherited, settings))
        if inherited is None or inherited.family != socket.AF_UNIX:
            bound.append(bind_unix(settings.socket, settings.socket_mode, settings.state_dir))
        if settings.listen and (inherited is None or inherited.family == socket.AF_UNIX):
            bound.append(bind_tcp(settings.listen, is_forced=settings.listen_force or bool(settings.tls_cert_file)))
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def bind_unix(path: str, mode: int, state_dir: str) -> ListeningSocket:
    """Listen on a Unix socket at `path` with file mode `mode`; a stale socket there is replaced.

    Raises:
        AlreadyRunning: another process answers there.
        Conflict: the path exists and is not a socket.
        NotPermitted: the folder belongs to another user, or others may replace what is in it.
    """
    place, lock_fd = Place(path, mode, state_dir), -1
    try:
        if os.path.dirname(place.path) != place.state_dir:
            _make_folder(place)
            lock_fd = _lock_beside(place.path)
        return ListeningSocket(_listen(place), place=place, lock_fd=lock_fd)
    except BaseException as error:
        if lock_fd >= 0:
            os.close(lock_fd)
        if isinstance(error, OSError):
            raise _bind_failure(place.path, error) from error
        raise


def _listen(place: Place) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(place.path)
        listener.bind(place.path)
        os.chmod(place.path, place.mode)  # before `listen`, so that no one can connect in between
        _give(place.path, place)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_failure(place.path, error) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _give(path: str, place: Place) -> None:
    """Let a path belong to the owner of the state folder, and where its group may use the daemon, to that group."""
    owner = os.stat(place.state_dir)
    found = os.lstat(path)
    uid = owner.st_uid if os.geteuid() == ROOT else -1
    gid = owner.st_gid if place.mode & 0o070 else -1
    if uid not in {-1, found.st_uid} or gid not in {-1, found.st_gid}:
        os.chown(path, uid, gid, follow_symlinks=False)


def _make_folder(place: Place) -> None:
    """Make the folder of a socket that is not in the state folder, or look whose it is.

    Raises:
        NotPermitted: another user owns it, or can replace what is in it.
    """
    folder = os.path.dirname(place.path)
    if not os.path.lexists(folder):
        os.makedirs(folder, 0o710 if place.mode & 0o070 else 0o700)
        _give(folder, place)
    found = os.stat(folder) if short_socket_owner(place.path) is None else os.lstat(folder)
    is_ours = is_trusted(found.st_uid) or found.st_uid == os.stat(place.state_dir).st_uid
    if not stat.S_ISDIR(found.st_mode) or not is_ours or may_others_change(found):
        raise NotPermitted(
            f"{folder} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}; it must belong to"
            " this user, with mode 0700.",
            hint="Change that, or choose another path with --socket or OPSQ_SOCKET.",
        )


def bind_tcp(address: str, *, is_forced: bool) -> ListeningSocket:
    """Listen on `HOST:PORT`; port 0 takes a free one.

    Raises:
        UsageError: the host is unknown, or can be reached by other machines and `is_forced` is false.
        Conflict, NotPermitted: the port is taken, or this user may not use it.
    """
    host, port = split_address(address)
    try:
        family, kind, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise UsageError(f"Cannot listen on {address}: {error.strerror or error}.") from error
    except UnicodeError as error:  # a label of the host is empty, or too long
        raise UsageError(f"Cannot listen on {address}: the name of the host is not valid.") from error
    if not is_forced and not ipaddress.ip_address(str(name[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"Other machines can reach {address}, and anyone with the token could use this queue.",
            hint="Listen with TLS (--tls-cert-file) or on 127.0.0.1, or add --listen-force if this is intended.",
        )
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _bind_failure(address, error) from error
    return ListeningSocket(listener)


def take_inherited() -> socket.socket | None:
    """Return the one socket passed by a service manager in LISTEN_PID and LISTEN_FDS.

    None if there is none for this process.

    Effects: the variables are removed, so that child processes do not use them.

    Raises:
        UsageError: there is more than one, or it is not a listening stream socket.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count in {"", "0"}:
        return None
    if count != "1":
        raise UsageError(
            f"The service manager passed {count} sockets, but opsq accepts one.",
            hint="Keep one ListenStream= in the socket unit, and set further addresses with `listen`.",
        )
    os.set_inheritable(_FIRST_INHERITED, False)
    try:
        inherited = socket.socket(fileno=_FIRST_INHERITED)
        is_listening = inherited.type == socket.SOCK_STREAM and inherited.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
    except OSError as error:
        raise UsageError(f"The descriptor passed by the service manager is not a socket: {error.strerror}.") from error
    if not is_listening:
        raise UsageError(
            "The socket passed by the service manager is not listening.", hint="Use ListenStream= and Accept=no."
        )
    return inherited


def _accept_inherited(inherited: socket.socket, settings: Settings) -> ListeningSocket:
    bound = ListeningSocket(inherited)
    if inherited.family == socket.AF_UNIX:
        wanted, source = settings.socket, settings.source("socket")
        is_other = not source.startswith("state_dir") and os.path.realpath(wanted) != os.path.realpath(bound.name)
    else:
        wanted, source = settings.listen, settings.source("listen")
        is_other = bool(wanted) and split_address(wanted) != inherited.getsockname()[:2]
        address = inherited.getsockname()[0]
        is_forced = settings.listen_force or bool(settings.tls_cert_file)
        if not is_forced and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            raise UsageError(
                f"Other machines can reach the inherited socket {bound.name}.",
                hint="Add --listen-force if this is intended.",
            )
    if is_other:
        raise UsageError(
            f"{source} requests {wanted}, but the service manager passed {bound.name}.",
            hint="Make both the same, or remove one.",
        )
    return bound


def _remove_stale(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise Conflict(
            f"{path} exists and is not a socket; it was not touched.",
            hint="Choose another path for the socket.",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass  # a process is there, but slow
    raise AlreadyRunning(
        f"Another process serves the socket {path}.",
        hint="Stop it, or choose another path for the socket.",
    )


def _lock_beside(path: str) -> int:
    """Lock `PATH.lock`: two daemons with different state folders may be configured to use the same socket."""
    while True:
        lock_fd = open_file(f"{path}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock_fd)
            raise AlreadyRunning(
                f"Another daemon serves the socket {path}.", hint="Choose another path with --socket or OPSQ_SOCKET."
            ) from error
        locked = os.fstat(lock_fd)
        if _inode(f"{path}.lock") == (locked.st_dev, locked.st_ino):
            return lock_fd
        os.close(lock_fd)  # its daemon has removed it meanwhile: it keeps nobody else out


def _bind_failure(name: str, error: OSError) -> OpsqError:
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return NotPermitted(f"Cannot listen on {name}: {error.strerror}.")
    if is_no_room(error):
        return full_disk(Path(name))
    return Conflict(f"Cannot listen on {name}: {error.strerror or error}.", hint="Choose another address.")


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
