"""Prints JSON documents.

It must not import anything slow: the hot verbs print JSON too.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec


def print_json(document: Any) -> None:
    """Print one document on stdout, on one line."""
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()
