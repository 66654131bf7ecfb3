"""A gateway in front of a running daemon, and a client of its JSON API."""

import contextlib

import httpx
import pytest

DEADLINE_S = 180


@contextlib.contextmanager
def serving(queue, *options):
    """A gateway that is ready, as a client of its JSON API; ended by SIGTERM."""
    with queue.running("gateway", "--listen", "127.0.0.1:0", *options) as process:
        url = process.stdout.readline().decode().strip()
        with httpx.Client(base_url=f"{url}/api/v1/", timeout=DEADLINE_S, trust_env=False) as client:
            client.process = process
            yield client
        if process.poll() is None:
            process.terminate()
        assert process.communicate(timeout=DEADLINE_S)[1] == b""
        assert process.returncode == 0


@pytest.fixture
def api(queue):
    """A client of the JSON API of a gateway in front of a running daemon."""
    with serving(queue) as client:
        yield client
