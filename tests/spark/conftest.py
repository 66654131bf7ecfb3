"""One Spark session for all tests of this folder that need a JVM, and a daemon of its own for each test.

Spark runs what it is given in processes of its own, so nothing here can be mocked: tests look at what the daemon says.
The session allows three attempts of a task (`local[2,3]`); a JVM is started only if a test asks for it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opsq
from conftest import SHORT_ROOT
from daemons import running
from needs import need
from opsq.settings import Settings
from spark.clusters import Cluster, is_alive, running_cluster
from spark.jvm import DEADLINE_S, Jvm, fast_jvm
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


TIMEOUT_S = 3 * DEADLINE_S
"""For one test: what it waits for first is to fail with its own words. A test that is cut short leaves the others no
session."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of this folder the time that JVMs may need."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def jvm(clean_environment: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Jvm:
    """How JVMs start fast, on a Java that Spark can run on; what they share is kept beside pytest's own cache."""
    home = need("java")
    cache = getattr(request.config, "cache", None)  # not there with -p no:cacheprovider
    return fast_jvm(home, cache.mkdir("spark") if cache else tmp_path_factory.mktemp("jvm"))


@pytest.fixture
def java(jvm: Jvm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes of this test start local sessions fast."""
    for name, value in jvm.environ.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def spark(jvm: Jvm, service_access: dict[str, str]) -> Iterator[SparkSession]:
    """The one session; its home is the one that opsq chooses. Its executors find the service of objects."""
    from opsq.spark import build_session

    folder = Path(tempfile.mkdtemp(prefix="opsq-spark-", dir=SHORT_ROOT))
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "America/New_York",  # far from UTC, so that a zone that is lost shows
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service_access.items():
            patch.setenv(name, value)
        session = build_session("local[2,3]", name="opsq tests", conf=conf, is_short=True)
    yield session
    session.stop()
    shutil.rmtree(folder)


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon of this test."""
    with running(runtime_dir) as settings:
        yield settings


@pytest.fixture
def queue(daemon: Settings) -> Iterator[opsq.Queue]:
    """The test's own connection to it."""
    with opsq.connect(state_dir=daemon.state_dir) as queue:
        yield queue


@pytest.fixture
def rows(runtime_dir: Path) -> Path:
    """A Parquet file of 1000 rows in ten row groups."""
    path = runtime_dir / "in.parquet"
    table = pa.table({"id": list(range(1000)), "text": [f"row {n}" for n in range(1000)]})
    pq.write_table(table, path, row_group_size=100)
    return path


@pytest.fixture
def write(daemon: Settings, queue: opsq.Queue) -> Callable[..., opsq.Submission]:
    """Writes a DataFrame with the options given; the submission that came of it."""

    def write(frame: DataFrame, source: str = "opsq", **options: Any) -> opsq.Submission:
        before = {state.submission_id for state in queue.submissions()}
        frame.write.format(source).mode("append").options(stateDir=str(daemon.state_dir), **options).save()
        [new] = [state.submission_id for state in queue.submissions() if state.submission_id not in before]
        return queue.submission(new)

    return write


@pytest.fixture
def read(spark: SparkSession, daemon: Settings) -> Callable[..., DataFrame]:
    """The results of a submission, with the options given."""

    def read(submission: opsq.Submission, schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("opsq").options(stateDir=str(daemon.state_dir), **options)
        return (reader.schema(schema) if schema else reader).load(str(submission.id))

    return read


@pytest.fixture(scope="session")
def one_cluster(jvm: Jvm) -> Iterator[Cluster]:
    """The one cluster: a master and two workers."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-cluster-", dir=SHORT_ROOT))
    with running_cluster(folder, jvm) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def cluster(one_cluster: Cluster) -> Cluster:
    """The cluster with both workers, whatever became of them in a test before."""
    one_cluster.restore()
    return one_cluster


def work(queue: opsq.Queue, function: Callable[[bytes], bytes] = bytes) -> None:
    """Complete all there is with what a function makes of each chunk."""
    for chunk in queue.consume():
        chunk.complete(function(chunk.data))


def folders(daemon: Settings) -> list[str]:
    """The folders of content that there are, by name."""
    content = Path(daemon.state_dir) / "content"
    return sorted(entry.name for entry in content.iterdir() if entry.is_dir())


def parts(daemon: Settings) -> list[str]:
    """All parts that tasks have written and nobody has deleted."""
    return sorted(entry.name for entry in (Path(daemon.state_dir) / "content").glob("*/part-*"))


def terminated_at_work(words: list[str], folder: Path, gone_s: float = 300) -> str:
    """Start a pipeline whose program never ends, end it by SIGTERM in the midst of that, and see that nothing goes on.

    Args:
        words: the command line, up to the program.
        folder: where the program may leave its number.
        gone_s: how long after the end of the command the program may go on.

    Returns:
        What the command said on stderr.
    """
    script = f"echo $$ > {folder}/new-$$; mv {folder}/new-$$ {folder}/pid-$$; exec sleep 600"
    line = [*words, "--", "sh", "-c", script]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        [noted] = wait_until(lambda: list(folder.glob("pid-*")), DEADLINE_S, "a program runs")
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=DEADLINE_S)
    assert (child.returncode, out) == (128 + signal.SIGTERM, "")
    wait_until(lambda: not is_alive(int(noted.read_text())), gone_s, "the program is gone")
    return err
