"""The process that forks workers is quiet when its JVM hangs up, and workers find loaded what they need."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import opsq.spark.source
from conftest import SHORT_ROOT
from opsq.spark.session import spark_session, worker_daemon
from spark.clusters import is_alive
from waiting import wait_until

ENABLED, FOLDER, MODULE = (
    "spark.python.unix.domain.socket.enabled",
    "spark.python.unix.domain.socket.dir",
    "spark.python.daemon.module",
)


@pytest.fixture
def os_fork(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test puts in place of `os.fork` is taken away, and forks are counted anew."""
    real = os.fork
    monkeypatch.setattr(worker_daemon, "_forks", itertools.count(1))
    yield
    os.fork = real


def settings(python: str = sys.executable) -> dict[str, str]:
    return spark_session._unix_sockets(python)


def test_session_talks_to_its_workers_in_a_private_folder(spark: SparkSession):
    conf = spark.sparkContext.getConf()
    assert conf.get(ENABLED) == "true"
    folder = Path(conf.get(FOLDER) or "")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert spark.range(3).mapInArrow(lambda batches: batches, "id LONG").count() == 3
    assert any(path.suffix == ".sock" for path in folder.iterdir())


def test_workers_of_another_python_are_left_alone():
    assert settings("/usr/bin/python3") == {}
    assert set(settings()) == {ENABLED, FOLDER, MODULE}


@pytest.mark.parametrize("folder", ["x" * 60, "missing/folder"])
def test_sockets_need_a_temporary_folder_with_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    if "/" not in folder:
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    monkeypatch.setattr(spark_session, "_socket_folder", spark_session._socket_folder.__wrapped__)
    assert settings() == {}


PLANS = """
def main(infile, outfile):
    import opsq.spark.source.chunk_filters
    infile.read()
    outfile.write(b"too late")
"""
"""A worker module that Spark plans with, of which `pyspark.daemon` takes those whose names begin like its own."""


@pytest.mark.parametrize(
    ("module", "serves", "is_quiet"),
    [
        ("pyspark.daemon", "pyspark.worker", False),
        ("pyspark.daemon", "pyspark_plans", True),
        ("opsq.spark.session.worker_daemon", "pyspark.worker", True),
    ],
)
def test_worker_whose_jvm_hangs_up_prints_nothing(module: str, serves: str, is_quiet: bool):
    """Spark's own prints a traceback; once it does not, ours is not needed for this any more."""
    with tempfile.TemporaryDirectory(dir=SHORT_ROOT) as folder:
        Path(folder, "pyspark_plans.py").write_text(PLANS)
        environ = {
            **os.environ,
            "PYTHONPATH": folder,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        }
        command = [sys.executable, "-m", module, serves]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            (size,) = struct.unpack("!i", process.stdout.read(4))
            path = process.stdout.read(size)
            with socket.socket(socket.AF_UNIX) as jvm:
                jvm.connect(path)
                (worker,) = struct.unpack("!i", jvm.recv(4))
                jvm.sendall(struct.pack("!i", 3))  # a partition, whose task never comes
            wait_until(lambda: not is_alive(worker))
            _, printed = process.communicate(timeout=60)
    assert (b"BrokenPipeError" not in printed) == is_quiet, printed.decode()
    assert not (is_quiet and printed), printed.decode()


def test_second_worker_finds_loaded_what_tasks_need(os_fork: None, monkeypatch: pytest.MonkeyPatch):
    loaded: list[str] = []
    monkeypatch.setattr(worker_daemon, "_fork", lambda: 7)
    monkeypatch.setattr(worker_daemon, "import_module", loaded.append)
    assert (worker_daemon.fork(), loaded) == (7, [])
    assert worker_daemon.fork() == 7
    assert loaded == list(worker_daemon._LOADED)
    assert worker_daemon.fork() == 7
    assert loaded == list(worker_daemon._LOADED)
    gc.unfreeze()


def test_fork_with_the_thread_of_arrow_is_no_news(os_fork: None, monkeypatch: pytest.MonkeyPatch):
    """Python 3.12 and later would print it."""

    def warns() -> int:
        warnings.warn("This process is multi-threaded", DeprecationWarning, stacklevel=1)
        return 7

    monkeypatch.setattr(worker_daemon, "_fork", warns)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert worker_daemon.fork() == 7
    assert told == []


def test_worker_forks_as_usual(os_fork: None, monkeypatch: pytest.MonkeyPatch):
    def usual() -> int:
        return 0

    monkeypatch.setattr(worker_daemon, "_fork", usual)
    os.fork = worker_daemon.fork
    assert os.fork() == 0
    assert os.fork is usual


def test_search_for_garbage_leaves_out_what_modules_brought(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_daemon, "_modules_counts", set())
    monkeypatch.setattr(worker_daemon, "_serve", lambda sock, authenticated: 0)
    with socket.socket() as sock:
        try:
            assert worker_daemon.serve(sock, True) == 0
            frozen = gc.get_freeze_count()
            assert frozen > 10_000
            assert worker_daemon.serve(sock, True) == 0
            assert gc.get_freeze_count() <= frozen
        finally:
            gc.unfreeze()


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, ValueError])
def test_only_a_jvm_that_hung_up_is_not_told_of(error: type[Exception], capsys: pytest.CaptureFixture[str]):
    module = ModuleType("daemon")
    worker_daemon.hush(module)
    try:
        raise error("the end")
    except error:
        module.traceback.print_exc()
        assert "the end" in module.traceback.format_exc()
    assert ("the end" in capsys.readouterr().err) == (error is ValueError)


def test_workers_that_plan_are_quiet_too(spark: SparkSession):
    class Probe(DataSource):
        @classmethod
        def name(cls) -> str:
            return "probe"

        def schema(self) -> str:
            from opsq.spark.source import data_source

            assert data_source.OpsqDataSource
            return f"`{sys.modules['__main__'].traceback.print_exc.__module__}` INT"

    spark.dataSource.register(Probe)
    assert spark.read.format("probe").load().columns == [worker_daemon.__name__]


def test_process_that_spark_did_not_fork_is_left_alone():
    printing = vars(sys.modules["__main__"]).get("traceback")
    importlib.reload(opsq.spark.source)
    assert vars(sys.modules["__main__"]).get("traceback") is printing
