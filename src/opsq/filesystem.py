"""Which file systems lie under a path, and what is left on them; nothing else.

Must stay cheap to import: each client that writes content looks here.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

from opsq.units import counted

if TYPE_CHECKING:
    from pathlib import Path

SECTOR_BYTES = 512
"""Of `st_blocks`, whatever a file system's own blocks are."""
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
    """How much a file system holds, how much of that a user may still write, and whether there can be more files."""

    total_bytes: int
    free_bytes: int
    has_inodes: bool = True

    def __str__(self) -> str:
        if self.has_inodes:
            return f"{counted(self.free_bytes, 'byte')} free"
        return f"no inodes left (with {counted(self.free_bytes, 'byte')} free, there can be no more files)"


def is_no_room(error: BaseException | None) -> bool:
    """Whether the system says that a file system, or somebody's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def space(path: str | os.PathLike[str]) -> Space | None:
    """The space on the file system of `path`, which need not exist.

    None: the file system does not tell (it has no size, as some networks' have not).
    """
    while True:
        try:
            found = os.statvfs(path)
            break
        except FileNotFoundError:
            path = os.path.dirname(os.path.abspath(path))
        except OSError:
            return None
    if not found.f_blocks:
        return None
    has_inodes = found.f_favail > 0 or not found.f_files  # 0 of 0: it makes inodes as it needs them
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, has_inodes)


def room_left(path: str | os.PathLike[str]) -> str:
    """What is left on the file system of `path`, as words that follow "with"."""
    return str(space(path) or "an unknown number of bytes free")


def _mounts() -> dict[str, str]:
    """Mount point → type; a later mount on the same point hides an earlier one."""
    if sys.platform == "linux":
        try:
            with open("/proc/self/mounts", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            return {}
        fields = [line.split(" ") for line in lines]
        return {re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), point): kind for _, point, kind, *_ in fields}
    import subprocess  # slow, and not needed on Linux

    try:
        listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {m[1]: m[2] for m in re.finditer(r"^.* on (.*) \((\w+)", listing, re.MULTILINE)}
