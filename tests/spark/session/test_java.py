"""Which Java Spark gets: the order of the places, runtimes that lack a module, and what is said when none serves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opsq.errors import CommandNotFound
from opsq.spark.session import java


def make_java(home: Path, version: str, *, modules: str | None = None) -> Path:
    """A Java home whose `java` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    release = f'JAVA_VERSION="{version}"\n' + (f'MODULES="{modules}"\n' if modules is not None else "")
    (home / "release").write_text(release)
    return home


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, until a test puts one somewhere."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    wanted = make_java(tmp_path / "wanted", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(wanted))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "other", "21.0.8") / "bin"))
    assert java.ensure_java() == java.Java(str(wanted), 17, "JAVA_HOME")


def test_java_home_that_is_too_old_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "1.8.0_392")))
    newer = make_java(tmp_path / "new", "21.0.8")
    monkeypatch.setenv("PATH", str(newer / "bin"))
    assert java.ensure_java() == java.Java(str(newer), 21, "PATH")
    assert java.os.environ["JAVA_HOME"] == str(newer)


def test_java_on_the_path_is_left_to_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    home = make_java(tmp_path / "some", "17.0.9")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java.ensure_java() == java.Java(str(home), 17, "PATH")
    assert "JAVA_HOME" not in java.os.environ


def test_runtime_without_the_vector_module_gets_a_shim_that_drops_only_that_argument(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    home = make_java(tmp_path / "it's cut", "21.0.8", modules="java.base java.logging")
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.ensure_java()
    assert found.home.startswith(str(tmp_path / "cache" / "opsq"))
    assert java.os.environ["JAVA_HOME"] == found.home
    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=$HOME", "", "Main"]
    said = subprocess.run([f"{found.home}/bin/java", *asked], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == ["-cp", "a b", "-Dx=$HOME", "", "Main"]
    assert java.ensure_java().home == found.home


def test_shim_that_cannot_be_kept_says_where_it_was_to_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "cut", "21.0.8", modules="java.base")))
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(
        CommandNotFound, match=r"Java 21 in .*cut lacks jdk.incubator.vector.*cannot be stored.*cache"
    ) as refused:
        java.ensure_java()
    assert "XDG_CACHE_HOME" in refused.value.hint


def test_runtime_that_names_the_vector_module_needs_no_shim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    home = make_java(tmp_path / "whole", "21.0.8", modules="java.base jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java().home == str(home)


def test_no_java_says_what_was_found_and_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "old", "11.0.1") / "bin"))
    with pytest.raises(CommandNotFound) as missing:
        java.ensure_java()
    assert "JAVA_HOME" in missing.value.message
    assert "is Java 11" in missing.value.message
    assert "opsq[spark-java]" in missing.value.hint


def test_import_of_opsq_spark_loads_neither_pyspark_nor_arrow():
    code = (
        "import opsq, opsq.spark, sys; print(*sorted({'pyspark', 'pyarrow', 'pandas', 'numpy', 'py4j'} & "
        "set(sys.modules)))"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stderr, outcome.stdout.split()) == (0, "", [])


def test_public_names_of_opsq_spark_are_there():
    import opsq.spark

    assert all(callable(getattr(opsq.spark, name)) for name in ("build_session", "ensure_java"))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        opsq.spark.nothing  # noqa: B018
