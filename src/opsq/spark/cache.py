"""Folders of the user's cache: what this machine's Spark is helped with, made once and named after what it is made of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_folder(kind: str, made_of: str) -> Path:
    """Where to keep it, whether it is there or not.

    Args:
        kind: the first part of its name.
        made_of: all that it depends on: another one has another folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "opsq", f"{kind}-{hashlib.sha256(os.fsencode(made_of)).hexdigest()[:16]}")
