"""opsq on PySpark: DataFrames become submissions, results become DataFrames.

Nothing of PySpark or Arrow is loaded before it is used, so that importing this package costs next to nothing and fails
nowhere.

- `build_session`, `ensure_java`: a quiet session, on whatever Java there is.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opsq.spark.java import ensure_java
    from opsq.spark.session import build_session

__all__ = ["build_session", "ensure_java"]

_PLACES = {
    "build_session": "opsq.spark.session",
    "ensure_java": "opsq.spark.java",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'opsq.spark' has no attribute {name!r}")
    found: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
