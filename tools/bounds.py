"""Proves the bounds of the dependencies: runs tests with their lowest and with their newest versions.

    python tools/bounds.py [--cross] [--python PROGRAM]... [PYTEST ARGS]

The oldest Python gets the lowest versions that pyproject.toml allows, the newest Python the newest, of those that have
a wheel for it: .bounds/3.11-lowest and so on. What is for development alone is as new as it can be. It must not change
pyproject.toml or a lock file: who moves a bound runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from glob import glob
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".bounds"
TESTS = [
    *(f"tests/unit/{name}" for name in ("cli", "client", "content", "gateway", "options", "wire")),
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/unit/test_*.py")),
    *(f"tests/integration/{name}" for name in ("content", "gateway", "store")),
    *(
        f"tests/acceptance/test_{name}.py"
        for name in ("gateway", "page", "records", "relay", "submit", "top", "traces")
    ),
    "tests/acceptance/http_api/test_inspecting.py",
    "tests/acceptance/schedule/test_add.py",
    "tests/spark/formats",
    "tests/spark/fleet/test_fleet_session.py::test_declared_columns_of_pandas_frames_come_back_with_their_types",
]
"""What touches each dependency; of Spark, whose JVM is slow, little."""

EXTRAS = [f"--extra={name}" for name in ("gateway", "postgresql", "spark-connect", "traces")]
LOWEST, NEWEST = "lowest-direct", "highest"
COMPILE = ["--quiet", "--no-config", "--no-header", "--no-annotate", "--only-binary=:all:", "--no-binary=pyspark"]


def uv(*words: str | Path) -> None:
    """Run uv, which must not take the environment of this process for the one that is meant."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run([sys.executable, "-m", "uv", *words], cwd=ROOT, env=environment, check=True)


def found_pythons() -> dict[tuple[int, int], str]:
    """Return the Pythons of this machine that are new enough, by version: those on the PATH, and those of pyenv."""
    named = [f"python3.{minor}" for minor in range(11, 20)]
    pyenv = glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python"))
    return versions([*pyenv, *filter(shutil.which, named), sys.executable])


def versions(programs: list[str]) -> dict[tuple[int, int], str]:
    """Return those of these programs that are a Python from 3.11 on, by version."""
    found = {}
    for program in programs:
        asked = [program, "-c", "import sys; print(*sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        if answer and (version := (int(answer[0]), int(answer[1]))) >= (3, 11):
            found[version] = program
    return found


def make_environment(version: str, python: str, resolution: str) -> Path:
    """Make an environment and return its folder; NAME.txt beside it says what is in it."""
    name = f"{version}-{resolution.partition('-')[0].replace('highest', 'newest')}"
    folder, bounds, pins = WORK / name, WORK / f"{name}-bounds.txt", WORK / f"{name}.txt"
    compiled = ["pip", "compile", *COMPILE, "--python-version", version, "pyproject.toml", "requirements/build.in"]
    uv(*compiled, "--resolution", resolution, *EXTRAS, "-o", bounds)
    # What our dependencies depend on is theirs to bound, and may have to be older for a tool.
    ours = [pin for pin in bounds.read_text().splitlines() if pin.partition("==")[0] in _direct()]
    bounds.write_text("\n".join(ours) + "\n")
    uv(*compiled, "--extra=dev", "-c", bounds, "-o", pins)
    uv("venv", "--quiet", "--no-config", "--clear", "--python", python, folder)
    install = ["pip", "install", "--quiet", "--no-config", "--python", folder / "bin" / "python"]
    uv(*install, "-r", pins)
    uv(*install, "--no-deps", "--no-build-isolation", "--editable", ".")
    return folder


def _direct() -> set[str]:
    """Return the names of what pyproject.toml bounds for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for extra, names in project["optional-dependencies"].items() if extra != "dev" for each in names]
    return {Requirement(each).name for each in [*project["dependencies"], *extras]}


def main() -> int:
    """Make the environments, run the tests in each, and say at the end where they failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", action="append", help="a Python, in place of the oldest and newest that are found")
    parser.add_argument("--cross", action="store_true", help="also the newest versions on the oldest, and the reverse")
    options, rest = parser.parse_known_args()
    pythons = versions(options.python) if options.python else found_pythons()
    ends = [(min(pythons), LOWEST), (max(pythons), NEWEST)]
    if options.cross:
        ends += [(min(pythons), NEWEST), (max(pythons), LOWEST)]
    WORK.mkdir(exist_ok=True)
    failed = []
    for version, resolution in ends:
        folder = make_environment("{}.{}".format(*version), pythons[version], resolution)
        print(f"--- {folder.name}: {pythons[version]}", flush=True)
        environment = os.environ | {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
        command = [folder / "bin" / "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *(rest or TESTS)]
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(folder.name)
    print(f"failed: {', '.join(failed)}" if failed else "The bounds hold.")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
