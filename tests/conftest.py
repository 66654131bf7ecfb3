"""What every test gets: a clean environment, a home and a short runtime directory of its own, Hypothesis profiles.

It must not know anything of opsq itself; fixtures of daemons, engines and clients belong to the folders that use them.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from needs import need
from postgresql import Cluster, running

# What a developer's shell, a service manager or a cloud account may have set and opsq or its libraries would read.
FOREIGN_PREFIXES = ("OPSQ_", "XDG_", "LISTEN_", "AWS_", "GOOGLE_", "AZURE_", "SPARK_", "PYSPARK_", "PG")
FOREIGN_NAMES = ("NOTIFY_SOCKET", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")

# A daemon's socket path must stay under about 100 bytes, which pytest's own tmp_path and macOS's TMPDIR do not allow.
SHORT_ROOT = Path("/tmp").resolve()

# No profile has a deadline, since no test asserts a time. CI draws the same examples each run, soak new ones for hours.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=20_000,
    stateful_step_count=200,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
"""What a program begins with."""


def reset_handlers() -> None:
    """Give signals their default meanings.

    A shell ignores SIGINT for what it runs in the background, and nohup SIGHUP; opsq would rightly go on ignoring them.
    """
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of tests that need a program."""
    config.addinivalue_line("markers", "needs(*programs): skipped, in CI failed, where one of them is not installed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for the programs that a test is marked to need."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            need(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one worker more than there are processors (`-n auto`): tests wait for other processes part of the time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep together what shares a JVM, and begin with what takes longest."""
    from scheduling import scheduling  # imports pytest-xdist, which only parallel runs have

    return scheduling(config, log)


def is_foreign(name: str) -> bool:
    """Whether a variable would let the machine that runs the tests shine through."""
    return name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES


@pytest.fixture(scope="session", autouse=True)
def clean_environment() -> Iterator[None]:
    """Take foreign variables out of the environment before anything else is set up, for children too."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if is_foreign(name)]:
            patch.delenv(name)
        home = Path(tempfile.mkdtemp(prefix="opsq-", dir=SHORT_ROOT))
        patch.setenv("HOME", str(home))
        reset_handlers()
        yield
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
def handlers(clean_environment: None) -> None:
    """Let each test begin as a program does, whatever ran before: a session of Spark handles SIGINT from then on."""
    reset_handlers()


@pytest.fixture(autouse=True)
def home(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give each test an empty home, so that a default state folder is never shared; its path is short."""
    path = Path(tempfile.mkdtemp(prefix="opsq-", dir=SHORT_ROOT))
    monkeypatch.setenv("HOME", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A directory of mode 0700 with a path short enough for sockets, this test's alone; removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="opsq-", dir=SHORT_ROOT))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def postgresql(clean_environment: None) -> Iterator[Cluster]:
    """A server of PostgreSQL for all tests that do not break it; each makes a database of its own."""
    path = Path(tempfile.mkdtemp(prefix="opsq-", dir=SHORT_ROOT))
    with running(path) as cluster:
        yield cluster
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def object_service(clean_environment: None) -> Iterator[str]:
    """The URL of a service that speaks S3, on loopback; one for all tests that want it."""
    from moto.server import ThreadedMotoServer  # seconds that only few tests need

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_service: str) -> str:
    """The name of an empty bucket, the only one in the service."""
    for path, method in (("moto-api/reset", "POST"), ("bucket", "PUT")):
        urllib.request.urlopen(urllib.request.Request(f"{object_service}/{path}", method=method)).close()
    return "bucket"


@pytest.fixture(scope="session")
def service_access(object_service: str) -> dict[str, str]:
    """The variables by which whoever reads a store finds the service."""
    return {
        "AWS_ENDPOINT": object_service,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@pytest.fixture
def service_environment(service_access: dict[str, str], bucket: str) -> dict[str, str]:
    """The variables of a daemon that uses the service, and of whoever reads its store."""
    return {**service_access, "OPSQ_STORE": f"s3://{bucket}/some/prefix"}
