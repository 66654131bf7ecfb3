"""The verbs that shell loops call for every chunk load nothing that is slow to load."""

from __future__ import annotations

import subprocess
import sys

SLOW = [
    "typer",
    "rich",
    "asyncio",
    "logging",
    "subprocess",
    "tempfile",
    "shutil",
    "json",
    "dataclasses",
    "inspect",
    "pathlib",
    "uvloop",
    "obstore",
    "apsw",
]


def test_hot_verbs_load_nothing_slow() -> None:
    """Also not what the common way of each verb needs besides."""
    code = (
        "import sys, opsq.__main__\n"
        "opsq.__main__.run(['read', 'no handle'])\n"
        "from opsq.cli.verbs import reserve, read, complete, fail, release, extend\n"
        "from opsq.content import chunk_reader, content_store, local_store, manifest\n"
        "print(*[name for name in sys.argv[1:] if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *SLOW, "typing_extensions"], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []
