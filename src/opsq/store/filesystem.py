"""Which file systems lie under a path, and what is left on them; nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|afpfs|webdav|ceph|glusterfs|lustre|beegfs|gpfs|"
    r"fuse\.(sshfs|glusterfs|s3fs|gcsfuse|rclone|davfs.*)"
)


def network_filesystem(folder: Path) -> str | None:
    """The type of the network file system that holds `folder`; None if it is local or unknown."""
    mounts = _mounts()
    for place in (folder.resolve(), *folder.resolve().parents):
        kind = mounts.get(str(place))
        if kind is not None:
            return kind if _NETWORK.fullmatch(kind) else None
    return None


class Space(NamedTuple):
    """How much a file system holds, and how much of that a user may still write."""

    total_bytes: int
    free_bytes: int


def space(folder: Path) -> Space | None:
    """The space on the file system of `folder`.

    None: the file system does not tell (it has no size, as some networks' have not).
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize) if found.f_blocks else None


def _mounts() -> dict[str, str]:
    """Mount point → type; a later mount on the same point hides an earlier one."""
    if sys.platform == "linux":
        try:
            lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
        except OSError:
            return {}
        fields = [line.split(" ") for line in lines]
        return {re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), point): kind for _, point, kind, *_ in fields}
    try:
        listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {m[1]: m[2] for m in re.finditer(r"^.* on (.*) \((\w+)", listing, re.MULTILINE)}
