"""Folders of the user's cache: what this machine's Spark is helped with, made once and named after what it is made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder(kind: str, made_of: str) -> Path:
    """Where to keep it, whether it is there or not: in `XDG_CACHE_HOME` if that is a whole path, else in `~/.cache`.

    Args:
        kind: the first part of its name.
        made_of: all that it depends on: another one has another folder.

    Raises:
        FileNotFoundError: this user has no home.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            raise FileNotFoundError("this user has no home folder")
        cache = os.path.join(home, ".cache")
    return Path(cache, "opsq", f"{kind}-{hashlib.sha256(os.fsencode(made_of)).hexdigest()[:16]}")
