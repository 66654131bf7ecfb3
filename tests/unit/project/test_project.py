"""The lock files agree with pyproject.toml, so that `make` installs what the project asks for.

It must not ask a registry: whether newer versions exist is no failure.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import trove_classifiers
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import opsq.version

REPOSITORY = Path(__file__).parents[3]
EXTRAS = {"dev", "gateway", "postgresql", "replicate", "spark", "spark-connect", "traces"}
"""What development needs; it brings all extras but a Java."""
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def pins_of(lock: str) -> dict[str, str]:
    """Read name → pinned version from a lock file."""
    text = (REPOSITORY / "requirements" / lock).read_text()
    return {canonicalize_name(name): pin for name, pin in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


@pytest.mark.parametrize("lock", ["run.lock", "dev.lock"])
def test_lock_pins_every_dependency_within_its_bounds(lock: str):
    """A bound moved in pyproject.toml without `make lock` is noticed."""
    wanted = list(PROJECT["dependencies"])
    if lock == "dev.lock":
        wanted += [each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra]]
    pins = pins_of(lock)
    for requirement in map(Requirement, wanted):
        if requirement.name == "opsq":  # its extras
            assert requirement.extras <= EXTRAS
            continue
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{lock} pins {requirement.name} {pin}, not {requirement.specifier}"


def test_every_cap_has_its_reason_beside_it():
    """A cap keeps users from what is new, so nobody sets one without saying why."""
    lines = (REPOSITORY / "pyproject.toml").read_text().splitlines()
    capped = [at for at, line in enumerate(lines) if re.search(r'"[\w.-]+(\[\w+\])?>=[\w.]+,<', line)]
    assert capped
    assert [lines[at] for at in capped if not lines[at - 1].lstrip().startswith("#")] == []


def test_classifiers_are_known_and_name_the_pythons_from_the_oldest_on():
    """A registry refuses a release with a classifier that it does not know."""
    assert set(PROJECT["classifiers"]) <= trove_classifiers.classifiers
    minors = [int(found[1]) for each in PROJECT["classifiers"] if (found := re.search(r":: 3\.(\d+)$", each))]
    assert f">=3.{minors[0]}" == PROJECT["requires-python"]
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_run_lock_is_part_of_dev_lock():
    """An environment for tests has the very versions that users of run.lock get."""
    assert pins_of("run.lock").items() <= pins_of("dev.lock").items()


@pytest.mark.parametrize("lock", ["run.lock", "dev.lock"])
def test_lock_names_no_host(lock: str):
    """Which registry serves the files is the machine's business."""
    assert "://" not in (REPOSITORY / "requirements" / lock).read_text()


def test_changelog_tells_of_the_present_version_or_of_what_is_unreleased():
    """The version has one place, and the changelog keeps up with it."""
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in text or f"## [{opsq.version.__version__}]" in text
