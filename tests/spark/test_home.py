"""Workers of a local session import the installed PySpark, and nobody else is touched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from opsq.spark import home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty one, and no home that somebody chose."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def used(python: str = sys.executable) -> str | None:
    with home.light_home(python):
        return os.environ.get("SPARK_HOME")


def test_workers_import_what_is_installed(spark: SparkSession):
    def origins(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"origin": [pyspark.__file__]})

    assert {row.origin for row in spark.range(1).mapInArrow(origins, "origin string").collect()} == {pyspark.__file__}


def test_home_has_all_of_the_package_but_its_python(cache: Path):
    first = used()
    assert first is not None
    assert Path(first).parent == cache / "opsq"
    assert {part.name: part.resolve() for part in Path(first).iterdir()} == {
        name: PACKAGE / name for name in ("bin", "conf", "data", "jars", "sbin")
    }
    assert "SPARK_HOME" not in os.environ
    assert used() == first


def test_processes_that_make_it_at_once_get_the_same_whole_folder(cache: Path, monkeypatch: pytest.MonkeyPatch):
    pids = iter(range(1, 100))
    monkeypatch.setattr(os, "getpid", lambda: next(pids))
    with ThreadPoolExecutor(8) as pool:
        [found] = set(pool.map(home._linked, [PACKAGE] * 8))
    assert list((cache / "opsq").iterdir()) == [found]
    assert len(list(found.iterdir())) == 5


def test_who_chose_a_home_keeps_it(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert used() == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not cache.exists()


def test_workers_of_another_python_may_need_the_archive(cache: Path):
    assert used("/usr/bin/python3") is None
    assert not cache.exists()


def test_pyspark_that_workers_do_not_find_by_themselves_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(home.site, "getsitepackages", list)
    assert used() is None


def test_without_a_cache_to_write_in_all_goes_on_as_ever(cache: Path):
    cache.write_text("no folder")
    assert used() is None
