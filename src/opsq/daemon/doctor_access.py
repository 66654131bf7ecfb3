"""Checks who may reach a queue: by the modes of its folder and socket, by its tokens, and by its certificate.

This file only inspects: it must not change a mode, nor ask a daemon.
"""

from __future__ import annotations

import grp
import os
import stat
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from opsq.errors import OpsqError
from opsq.settings import Settings
from opsq.users import ROOT, user_name

_SOON_S = 14 * 86400.0
"""A certificate that is good for less is worth a word."""


class Fact(NamedTuple):
    """The result of one check; `advice` says what to do, and is empty if there is nothing to do."""

    check: str
    is_ok: bool
    detail: str
    advice: str = ""


def state_folder(settings: Settings) -> Fact:
    """Whose the folder is, and who else may enter it."""
    path, name = settings.state_dir, "state folder"
    detail = f"{path} ({settings.source('state_dir')})"
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Fact(name, True, f"{detail}, does not exist yet", "`opsq start` creates it.")
    except OSError as error:
        return Fact(
            name, False, f"{detail}: {error.strerror}", "Choose another one with --state-dir or OPSQ_STATE_DIR."
        )
    if not stat.S_ISDIR(found.st_mode):
        return Fact(name, False, f"{detail} is not a folder", "Choose another one with --state-dir or OPSQ_STATE_DIR.")
    mode, is_shared = stat.S_IMODE(found.st_mode), settings.is_shared or _is_for_group(settings.socket)
    if mode & (0o027 if is_shared else 0o077):
        advice = f"Run: chmod {'710' if is_shared else '700'} {path}"
        return Fact(name, False, f"{detail} has mode {mode:04o}: other users may enter it", advice)
    whose = f"{detail} belongs to {user_name(found.st_uid)}"
    if is_shared:
        whose += f", and its group {group_name(found.st_gid)} may use the queue"
    may_enter = os.geteuid() in {ROOT, found.st_uid} or (is_shared and mode & 0o010 and _is_member(found.st_gid))
    if not may_enter:
        return Fact(name, False, whose, "Run opsq as that user, or choose another --state-dir.")
    return Fact(name, True, whose if is_shared or found.st_uid != os.geteuid() else detail)


def socket_file(settings: Settings) -> Fact:
    """Who may connect to the socket."""
    detail = f"{settings.socket}, from {settings.source('socket')}"
    try:
        found = os.stat(settings.socket)
        folder = os.stat(os.path.dirname(settings.socket))
    except OSError:
        return Fact("socket", True, detail)
    if not stat.S_ISSOCK(found.st_mode):
        return Fact("socket", False, f"{detail} is not a socket", "Remove it, or choose another path with --socket.")
    mode = stat.S_IMODE(found.st_mode)
    who = "only root" if not found.st_uid else f"{user_name(found.st_uid)} and root"
    if mode & 0o002:
        who = "all users of this machine"
    elif mode & 0o020:
        owner = "" if not found.st_uid else f"{user_name(found.st_uid)}, "
        who = f"{owner}root and the group {group_name(found.st_gid)}"
    detail = f"{detail}, mode {mode:04o}: {who} may connect, as operators"
    if mode & 0o020 and not folder.st_mode & 0o011:
        advice = f"Run: chmod g+x {os.path.dirname(settings.socket)}"
        return Fact("socket", False, f"{detail}, but the group may not enter its folder", advice)
    return Fact("socket", True, detail)


def network(settings: Settings, running: Mapping[str, str]) -> Iterator[Fact]:
    """Where the daemon listens, with which certificate, and who can read the tokens.

    Args:
        running: the settings of the running daemon, which may have been given at its start; else of the next.
    """
    listen, cert_file = running.get("listen", ""), running.get("tls_cert_file", "")
    if listen:
        tls = "with TLS" if cert_file else "without TLS"
        yield Fact("network", True, f"listens on {listen} {tls}; the token is in {settings.token_file}")
    if listen and cert_file:
        yield _certificate(running)
    for path in (settings.token_file, settings.client_token_file, settings.tokens_file):
        if os.path.exists(path) and os.stat(path).st_mode & 0o077:
            yield Fact("token", False, f"other users can read {path}", f"Run: chmod 600 {path}")


def _certificate(running: Mapping[str, str]) -> Fact:
    from opsq.daemon.certificate import good_until
    from opsq.daemon.server_tls import TlsFiles, load_context

    files = TlsFiles(*(running.get(name, "") for name in ("tls_cert_file", "tls_key_file", "tls_client_ca_file")))
    try:
        left_s = good_until(load_context(files), files.cert) - time.time()
    except OpsqError as error:
        advice = error.hint or "Put a new one in its place: the daemon notices."
        return Fact("certificate", False, error.message, advice)
    advice = "" if left_s > _SOON_S else "Put a new one in its place soon: the daemon notices."
    return Fact("certificate", True, f"{files.cert}, good for {left_s / 86400:.0f} days", advice)


def group_name(gid: int) -> str:
    """A group, by name if it has one."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"


def _is_for_group(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o020)
    except OSError:
        return False


def _is_member(gid: int) -> bool:
    return gid == os.getegid() or gid in os.getgroups()
