"""How a program of ours loads a library faster than by its name alone.

It must import nothing that is not always loaded.
"""

from __future__ import annotations

import sys


def load_msgspec() -> None:
    """Load msgspec without an optional helper, typing_extensions, which takes as long to load as all the rest of it."""
    if "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the documented way to make an import fail
    try:
        import msgspec  # noqa: F401  # only to have it loaded
    finally:
        del sys.modules["typing_extensions"]
