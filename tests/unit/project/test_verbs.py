"""Each verb has a module and a test of its name: who knows the verb knows where the rest is."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.cli.verb_table import GROUPS, VERBS, function_of

ROOT = Path(__file__).parents[3]
NAMES = [full for name in VERBS for full in ([f"{name} {part}" for part in GROUPS.get(name, ())] or [name])]


@pytest.mark.parametrize("name", NAMES)
def test_verb_is_a_function_of_its_name_in_a_module_of_its_name(name: str):
    """`dead requeue` is `requeue` in opsq.cli.verbs.dead.requeue."""
    function = function_of(name)
    assert function.__module__ == f"opsq.cli.verbs.{name.replace(' ', '.')}"
    assert function.__name__.rstrip("_") == name.rpartition(" ")[2]


@pytest.mark.parametrize("name", NAMES)
def test_verb_has_a_test_file_of_its_name(name: str):
    """Those of Spark share one, since each test there starts a JVM."""
    group, _, part = name.rpartition(" ")
    found = (
        ROOT / "tests/spark/cli/test_spark.py"
        if group == "spark"
        else ROOT / "tests/acceptance" / group / f"test_{part}.py"
    )
    assert found.is_file()


def test_there_is_no_module_that_is_no_verb():
    """What several verbs share stands outside of opsq.cli.verbs."""
    folder = ROOT / "src/opsq/cli/verbs"
    modules = {" ".join(path.relative_to(folder).with_suffix("").parts) for path in folder.rglob("*.py")}
    assert {name for name in modules if not name.endswith("__init__")} == set(NAMES)
