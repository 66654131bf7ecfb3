"""The folder of a queue as such: makes it, and sees to it that nobody else can put files into it.

It must not know what is in it.
"""

from __future__ import annotations

import errno
import os
import stat

from opsq.errors import InputUnreadable, NotPermitted, StorageFull
from opsq.filesystem import is_no_room
from opsq.fsync import make_folders
from opsq.users import ROOT, is_trusted, make_folder

_HINT = "Choose another one with --state-dir or OPSQ_STATE_DIR."


def make_state_dir(path: str, *, is_shared: bool = False) -> None:
    """Create the state folder if it does not exist; take from others the right to write to it, if it does.

    Args:
        is_shared: let its group pass, to the socket and the content.

    Raises:
        NotPermitted: it belongs to another user, or others could and did write to it.
        OpsqError: it cannot be created.
    """
    try:
        make_folders(path, make_folder)
        found = os.stat(path)
    except OSError as error:
        text = f"Cannot create the state folder {path}: {error.strerror}."
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise NotPermitted(text, hint=_HINT) from error
        if is_no_room(error):
            raise StorageFull(text, hint=_HINT) from error
        raise InputUnreadable(text, hint=_HINT) from error
    if os.geteuid() not in {ROOT, found.st_uid} and found.st_uid != ROOT:
        raise NotPermitted(f"The state folder {path} belongs to uid {found.st_uid}.", hint=_HINT)
    if found.st_mode & 0o022:
        _look_for_strangers(path, found)
    wanted = stat.S_IMODE(found.st_mode) & ~0o022 | (0o010 if is_shared else 0)
    if wanted == stat.S_IMODE(found.st_mode):
        return
    try:
        os.chmod(path, wanted)
    except OSError as error:
        if found.st_mode & 0o002 or is_shared:
            raise NotPermitted(
                f"The state folder {path} belongs to uid {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}:"
                f" it must have {wanted:04o}.",
                hint="Change that, or name a folder in it with --state-dir or OPSQ_STATE_DIR.",
            ) from error


def _look_for_strangers(path: str, folder: os.stat_result) -> None:
    """Refuse a folder in which somebody else has left something that we would take for ours."""
    with os.scandir(path) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            strange = ""
            if not is_trusted(found.st_uid) and found.st_uid != folder.st_uid:
                strange = f"belongs to uid {found.st_uid}"
            elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                strange = "has other names too (hard links), perhaps by somebody else"
            if strange:
                raise NotPermitted(
                    f"Others may write to the state folder {path} (mode {stat.S_IMODE(folder.st_mode):04o}), and"
                    f" {entry.name} in it {strange}.",
                    hint=f"See what it is, remove it, and run: chmod go-w {path}",
                )
