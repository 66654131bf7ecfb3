"""Folders of the user's cache: what this machine's Spark is helped with, made once and named after what it is made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs


def cache_folder(kind: str, made_of: str) -> Path:
    """Where to keep it, whether it is there or not: in the cache folder that the system has for users.

    Args:
        kind: the first part of its name.
        made_of: all that it depends on: another one has another folder.

    Raises:
        FileNotFoundError: this user has no home.
    """
    try:
        cache = platformdirs.user_cache_dir("opsq")
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home folder") from error
    return Path(cache, f"{kind}-{hashlib.sha256(os.fsencode(made_of)).hexdigest()[:16]}")
