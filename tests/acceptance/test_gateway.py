"""The verb gateway: HTTP in front of the daemon, as curl and scripts meet it."""

import contextlib
import signal
import socket
import subprocess

import httpx
import pytest

from waiting import wait_until

DEADLINE_S = 180


@contextlib.contextmanager
def gateway(queue, *options):
    """A gateway that is ready; its URL, and its process."""
    with queue.running("gateway", *(options or ("--listen", "127.0.0.1:0"))) as process:
        yield process.stdout.readline().decode().strip(), process


def ended(process, number=signal.SIGTERM):
    """Send a signal; the status and what was said."""
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def get(url, **options):
    """The answer to a GET."""
    return httpx.get(url, timeout=DEADLINE_S, trust_env=False, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_ends_with_0(queue, number):
    with gateway(queue) as (url, process):
        assert url.startswith("http://127.0.0.1:")
        assert (get(f"{url}/healthz").status_code, get(f"{url}/healthz").text) == (200, "ok\n")
        assert (get(f"{url}/readyz").status_code, get(f"{url}/readyz").text) == (200, "running\n")
        assert ended(process, number) == (0, b"")


def test_is_not_ready_while_no_daemon_answers_and_ready_when_one_does(opsq):
    with gateway(opsq) as (url, process):
        assert get(f"{url}/healthz").status_code == 200
        refused = get(f"{url}/readyz")
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["code"] == "unreachable"
        opsq.ok("start")
        assert get(f"{url}/readyz").status_code == 200
        opsq.ok("restart")
        assert get(f"{url}/readyz").status_code == 200
        assert ended(process) == (0, b"")


def test_serves_on_a_unix_socket_that_only_its_user_may_use_and_removes_it(queue):
    path = queue.folder / "http.sock"
    with gateway(queue, "--uds", str(path)) as (url, process):
        assert url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://anything/readyz").text == "running\n"
        assert ended(process) == (0, b"")
    assert not path.exists()


def test_refuses_pages_of_other_sites_and_names_that_are_not_this_machine(queue):
    with gateway(queue) as (url, process):
        assert get(f"{url}/readyz", headers={"Origin": "https://elsewhere.example"}).status_code == 403
        assert get(f"{url}/readyz", headers={"Host": "elsewhere.example"}).status_code == 403
        assert get(f"{url}/readyz", headers={"Origin": url}).status_code == 200
        assert get(f"{url}/nothing").json() == {
            "type": "about:blank",
            "title": "Not Found",
            "status": 404,
            "detail": "Not Found",
            "code": "http",
        }
        assert ended(process) == (0, b"")


def test_beyond_this_machine_every_request_needs_a_token(queue):
    with gateway(queue, "--listen", "0.0.0.0:0") as (url, process):
        assert get(f"{url}/healthz").status_code == 200
        refused = get(f"{url}/anything")
        assert (refused.status_code, refused.json()["code"]) == (401, "not_permitted")
        assert refused.headers["www-authenticate"] == 'Bearer realm="opsq"'
        unknown = get(f"{url}/record", headers={"Authorization": "Bearer " + "x" * 64})
        assert (unknown.status_code, unknown.json()["code"]) == (401, "not_permitted")
        assert unknown.headers["www-authenticate"] == 'Bearer realm="opsq"'
        token = queue.ok("token", "create", "reader", "--role", "read-only").text
        assert get(f"{url}/record", headers={"Authorization": f"Bearer {token}"}).status_code == 403
        assert ended(process) == (0, b"")


def test_address_in_use_and_two_addresses_are_refused(queue):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = queue("gateway", "--listen", address)
        assert refused.status == 5
        assert address in refused.err
    assert queue("gateway", "--listen", "127.0.0.1:0", "--uds", "x").status == 2
    assert queue("gateway", "--listen", "nonsense").status == 2


def test_inherits_the_socket_of_a_service_manager(queue):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        script = 'exec 3<&"$0" && LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        command = ["/bin/bash", "-c", script, str(listening.fileno()), *queue.program, "gateway"]
        with subprocess.Popen(
            command, env=queue.environ, pass_fds=[listening.fileno()], stderr=subprocess.PIPE
        ) as process:
            listening.close()
            wait_until(lambda: get(f"{url}/readyz").status_code == 200, DEADLINE_S, "it serves")
            assert ended(process) == (0, b"")
