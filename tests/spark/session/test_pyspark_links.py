"""Workers of a local session import the installed PySpark, and nobody else is touched."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty one, and no home or path that somebody chose."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def used(python: str = sys.executable) -> str | None:
    with pyspark_links.light_home(python):
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
        [found] = set(pool.map(pyspark_links._linked, [cache / "opsq" / "home"] * 8, [PACKAGE] * 8))
    assert list((cache / "opsq").iterdir()) == [found]
    assert len(list(found.iterdir())) == 5


@pytest.mark.parametrize("damage", ["a link is missing", "a link leads elsewhere", "nothing in it"])
def test_folder_that_was_damaged_is_made_again(damage: str):
    first = used()
    assert first is not None
    jars = Path(first, "jars")
    jars.unlink()
    if damage == "a link leads elsewhere":
        jars.symlink_to("/usr/share/java")
    elif damage == "nothing in it":
        shutil.rmtree(first)
        Path(first).mkdir(mode=0o700)
    assert used() == first
    assert jars.readlink() == PACKAGE / "jars"


@pytest.mark.parametrize("owner", ["somebody else", "a group"])
def test_folder_that_others_can_write_is_not_run_from(owner: str, monkeypatch: pytest.MonkeyPatch):
    first = used()
    assert first is not None
    if owner == "a group":
        Path(first).chmod(0o770)
    else:
        uid = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert used() is None
    assert Path(first, "jars").readlink() == PACKAGE / "jars"


def test_threads_that_start_sessions_at_once_do_so_one_after_the_other():
    def start(_: int) -> str | None:
        with pyspark_links.light_home(sys.executable):
            time.sleep(0.01)
            return os.environ.get("SPARK_HOME")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(start, range(16)))) == 1
    assert "SPARK_HOME" not in os.environ


def test_who_chose_a_home_keeps_it(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert used() == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert not cache.exists()


def test_path_of_the_user_may_hold_another_pyspark(monkeypatch: pytest.MonkeyPatch, cache: Path):
    monkeypatch.setenv("PYTHONPATH", "/opt/mine")
    assert used() is None
    assert not cache.exists()


def test_workers_of_another_python_may_need_the_archive(cache: Path):
    assert used("/usr/bin/python3") is None
    assert not cache.exists()


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
def test_cache_whose_name_java_may_not_read_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    assert used() is None


def test_without_a_cache_to_write_in_all_goes_on_as_ever(cache: Path):
    cache.write_text("no folder")
    assert used() is None


def test_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert used() is None
    assert list(tmp_path.iterdir()) == []


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
