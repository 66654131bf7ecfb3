"""Workers of a local session import the installed PySpark, and nobody else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from opsq.spark.session import pyspark_links, spark_session

PACKAGE = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder for temporary ones, and no home or path that somebody chose."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(pyspark_links, "_linked", pyspark_links._linked.__wrapped__)
    return folder


def used(python: str = sys.executable) -> str | None:
    with pyspark_links.light_home(python):
        return os.environ.get("SPARK_HOME")


def test_workers_import_what_is_installed(spark: SparkSession):
    def origins(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"origin": [pyspark.__file__]})

    assert {row.origin for row in spark.range(1).mapInArrow(origins, "origin string").collect()} == {pyspark.__file__}


def test_home_has_all_of_the_package_but_its_python():
    home = Path(pyspark_links._linked(PACKAGE))
    assert {part.name: part.resolve() for part in home.iterdir()} == {
        name: PACKAGE / name for name in ("bin", "conf", "data", "jars", "sbin")
    }
    assert used() is not None
    assert "SPARK_HOME" not in os.environ


def test_process_has_one_home_and_deletes_it_at_its_end(temporary: Path):
    code = (
        "import os, sys; from opsq.spark.session.pyspark_links import light_home\n"
        "for _ in range(2):\n"
        "    with light_home(sys.executable): print(os.environ['SPARK_HOME'], os.listdir(os.environ['TMPDIR']))"
    )
    environ = os.environ | {"TMPDIR": str(temporary)}
    said = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True).stdout
    [line] = set(said.splitlines())
    name = Path(line.split()[0]).name
    assert line == f"{temporary / name} {[name]}"
    assert list(temporary.iterdir()) == []


def test_who_chose_a_home_keeps_it(monkeypatch: pytest.MonkeyPatch, temporary: Path):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert used() == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert list(temporary.iterdir()) == []


def test_path_of_the_user_may_hold_another_pyspark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/opt/mine")
    assert used() is None


def test_workers_of_another_python_may_need_the_archive():
    assert used("/usr/bin/python3") is None


def test_pyspark_of_the_user_is_found_and_one_on_a_path_of_this_process_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pyspark_links.site, "getsitepackages", list)
    assert used() is None
    monkeypatch.setattr(pyspark_links.site, "getusersitepackages", lambda: str(PACKAGE.parent))
    assert used() is not None


def test_client_of_spark_connect_has_no_jvm_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    client = tmp_path / "site" / "pyspark" / "__init__.py"
    client.parent.mkdir(parents=True)
    monkeypatch.setattr(pyspark_links, "find_spec", lambda name: ModuleSpec(name, None, origin=str(client)))
    monkeypatch.setattr(pyspark_links.site, "getsitepackages", lambda: [str(tmp_path / "site")])
    assert used() is None
    (client.parent / "jars").mkdir()
    assert used() is not None


@pytest.mark.parametrize("name", ["caché", "a:b"])
def test_folder_whose_name_java_may_not_read_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch, temporary: Path):
    (temporary / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / name))
    assert used() is None


def test_without_a_folder_to_write_in_the_session_starts_all_the_same(monkeypatch: pytest.MonkeyPatch, temporary: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    assert used() is None


@pytest.mark.usefixtures("java")
def test_session_is_judged_by_the_python_that_its_workers_run(monkeypatch: pytest.MonkeyPatch):
    """`spark.pyspark.python` is for `spark-submit`; a session looks at PYSPARK_PYTHON."""
    asked: list[str] = []

    @contextmanager
    def note(python: str) -> Iterator[None]:
        asked.append(python)
        yield

    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    monkeypatch.setattr(spark_session, "light_home", note)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: None)
    spark_session.build_session("local[1]", conf={"spark.pyspark.python": sys.executable})
    spark_session.build_session("local[1]", conf={"spark.executorEnv.PYTHONPATH": "/opt/mine"})
    spark_session.build_session("spark://127.0.0.1:1")
    assert asked == ["/usr/bin/python3"]
