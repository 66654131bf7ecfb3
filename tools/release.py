"""Builds a release and checks it as whoever installs it will meet it; it must not publish anything.

    python tools/release.py [FOLDER]        by default dist/

What is committed is built twice, in two places: the second wheel from the source distribution, as pip makes it where
there is no wheel. Every byte must be the same, and all papers and examples inside. twine looks at what a registry will
show. Then the wheel is installed beside nothing but what run.lock pins, and does the main job. NOTES.md is what
CHANGELOG.md says of the version.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION: str = runpy.run_path(str(ROOT / "src" / "opsq" / "version.py"))["__version__"]
UNRELEASED = "Unreleased"


def main() -> int:
    """Do all of it; the first thing that is wrong ends it with its reason."""
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").absolute()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheel, sdist = build_twice(Path(scratch), dist)
        check_whole(wheel, sdist)
        _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        try_out(wheel, Path(scratch) / "environment")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = notes_of(changelog, VERSION)
    (dist / "NOTES.md").write_text(notes or notes_of(changelog, UNRELEASED), encoding="utf-8")
    print(f"\n{wheel.name} and {sdist.name} are in {dist}, with NOTES.md. Nothing was published.")
    if not notes:
        print(f"To do: CHANGELOG.md has no section [{VERSION}]; the notes are of what is unreleased.")
    if _output("git", "status", "--porcelain"):
        print("To do: what is not committed is not in it.")
    return 0


def build_twice(scratch: Path, dist: Path) -> tuple[Path, Path]:
    """Build a wheel and a source distribution into `dist`, and again elsewhere, for others than the owner unreadable.

    Raises:
        SystemExit: they differ.
    """
    os.environ["SOURCE_DATE_EPOCH"] = _output("git", "log", "-1", "--format=%ct")
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    built: list[tuple[Path, Path]] = []
    for umask, target in ((0o022, dist), (0o077, scratch / "again")):
        source = scratch / f"source-{umask:o}"
        source.mkdir()
        before = os.umask(umask)
        try:
            subprocess.run(["tar", "-x", "--no-same-permissions"], cwd=source, input=archive, check=True)
            sdist = _build(source, "sdist", target)
            if built:
                with tarfile.open(sdist) as unpacked:
                    unpacked.extractall(scratch, filter="data")
                source = scratch / sdist.name.removesuffix(".tar.gz")
            built.append((_build(source, "wheel", target), sdist))
        finally:
            os.umask(before)
    for file, again in zip(*built, strict=True):
        if file.read_bytes() != again.read_bytes():
            raise SystemExit(f"{file.name} has other bytes when it is built again.")
    return built[0]


def check_whole(wheel: Path, sdist: Path) -> None:
    """Look for each manual page, completion and example, and for the licence.

    Raises:
        SystemExit: some are missing.
    """
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = archive.namelist()
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    for path in _output("git", "ls-files", "man", "completions", "examples", "LICENSE", "src").splitlines():
        ends = place_in_wheel(path)
        if path not in in_sdist or not any(name.endswith(ends) for name in in_wheel):
            raise SystemExit(f"{path} is missing in {wheel.name} or {sdist.name}.")


def place_in_wheel(path: str) -> str:
    """Where a file of the repository is in the wheel: how its name there ends."""
    folder, _, rest = path.partition("/")
    match folder:
        case "man":
            return f"share/man/man{path[-1]}/{rest}"
        case "completions":
            return {"opsq.bash": "completions/opsq", "opsq.zsh": "site-functions/_opsq"}.get(rest, rest)
        case "examples":
            return f"opsq/{path}"
        case "src":
            return rest
    return f"licenses/{path}"


def try_out(wheel: Path, environment: Path) -> None:
    """Install a wheel beside nothing but what run.lock pins, find what it brings, and do the main job.

    Raises:
        CalledProcessError: something of it does not work.
    """
    _run(sys.executable, "-m", "venv", environment)
    install = [environment / "bin" / "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run(*install, "--require-hashes", "-r", ROOT / "requirements" / "run.lock")
    _run(*install, "--no-deps", wheel)
    opsq = environment / "bin" / "opsq"
    _run(opsq, "--version")
    _run(opsq, "examples", "run.sh", "--output", environment / "copied", "--quiet")
    _run(opsq, "completion", "bash", "--quiet", stdout=subprocess.DEVNULL)
    if not (environment / "share" / "man" / "man1" / "opsq.1").is_file():
        raise SystemExit("man has no page opsq(1) once the wheel is installed.")
    _run(opsq, "demo")


def notes_of(changelog: str, version: str) -> str:
    """What a changelog says of a version; "" if it has no section of it."""
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog)
    return f"# opsq {version}\n\n{found[1].strip()}\n" if found else ""


def _build(source: Path, kind: str, target: Path) -> Path:
    """Build one file, and return it."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, cwd=source, stdout=subprocess.DEVNULL)
    [file] = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


def _run(*command: str | Path, cwd: Path | None = None, stdout: int | None = None) -> None:
    subprocess.run(command, cwd=cwd, stdout=stdout, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
