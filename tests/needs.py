"""Owns what a test needs beside Python: where it is missing, the test is skipped with its name and how to install it.

It must not skip anything in CI (`CI=true`), which installs all of it: there a missing program fails the test.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import NoReturn

import pytest

INSTALL = {
    "bash": "apt install bash / brew install bash",
    "curl": "apt install curl / brew install curl",
    "fish": "apt install fish / brew install fish",
    "java": "apt install openjdk-17-jre-headless / brew install openjdk@17, or pip install 'opsq[spark-java]'",
    "git": "apt install git / brew install git",
    "man": "apt install man-db / brew install man-db",
    "openssl": "apt install openssl / brew install openssl@3",
    "ps": "apt install procps",
    "unshare": "apt install util-linux (Linux alone has namespaces)",
    "zsh": "apt install zsh / brew install zsh",
}
"""How to install each program, on Debian and on macOS."""


def need(name: str) -> str:
    """Skip the test unless this program is installed.

    Returns:
        Where it is; for Java, its home.
    """
    found = _java() if name == "java" else shutil.which(name)
    if not found:
        lack(f"{name}: {INSTALL[name]}")
    return found


def lack(missing: str) -> NoReturn:
    """Skip the test, in CI fail it.

    Args:
        missing: what is not there, and how to get it.
    """
    if os.environ.get("CI") == "true":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@cache
def _java() -> str | None:
    """The home of a Java that Spark can run on; the environment stays as it is."""
    from opsq.errors import CommandNotFound
    from opsq.spark import ensure_java

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))  # set back afterwards
        try:
            return ensure_java().home
        except CommandNotFound:
            return None
