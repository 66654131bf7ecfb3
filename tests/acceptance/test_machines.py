"""Units and the container as an administrator meets them: on a machine of their own where nothing is made yet."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machine, booted, machine
from waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
UNITS = REPOSITORY / "examples" / "systemd"
IN = "export OPSQ_STATE_DIR=/var/lib/opsq; "
LARGE = "".join(f"{number}\n" for number in range(20_000))
"""More than travels with a submission."""


@pytest.fixture
def computer(runtime_dir: Path) -> Iterator[Machine]:
    """A machine with systemd and the units."""
    with booted(runtime_dir) as found:
        for path in UNITS.glob("opsq[.-]*"):
            found.ok(f"cat > /etc/systemd/system/{path.name}", stdin=path.read_text())
        found.ok("systemctl daemon-reload")
        yield found


def enable(computer: Machine, unit: str) -> None:
    """Do what the first lines of the units say."""
    computer.ok(f"useradd --system --user-group opsq; systemctl enable --now {unit}")


def is_round(computer: Machine, producer: str, consumer: str) -> bool:
    """Whether one user works on what the other one submits, with content and results that are files."""
    submission = computer.ok(f"{IN}opsq submit - --bytes 64K", producer, stdin=LARGE)
    computer.ok(f"{IN}opsq consume --until-empty -s 'SelectOnly(submission={submission})' -- cat", consumer)
    return computer.ok(f"{IN}opsq results {submission}", producer) == LARGE.strip()


def daemon_of(computer: Machine) -> int:
    """The process of its daemon, which must answer."""
    return int(json.loads(computer.ok(f"{IN}opsq status --json"))["pid"])


def main_process(computer: Machine) -> str:
    """The process of opsq.service; "0": there is none."""
    return computer.ok("systemctl show opsq --property=MainPID --value")


def test_socket_unit_starts_the_daemon_of_a_fresh_machine_when_somebody_connects(computer: Machine) -> None:
    enable(computer, "opsq.socket")
    assert computer.run("systemctl is-active opsq.service").stdout == "inactive\n"
    assert is_round(computer, "root", "opsq")
    assert computer.ok("systemctl is-active opsq.service") == "active"
    assert computer.ok("find /var/lib/opsq -not -user opsq") == ""


def test_service_is_ready_when_it_has_started_and_restarted_by_its_manager_alone(computer: Machine) -> None:
    enable(computer, "opsq")
    assert is_round(computer, "opsq", "opsq")
    refused = computer.run(f"{IN}opsq restart", "opsq")
    assert refused.returncode == 5
    command = re.findall("Run: (.*)", refused.stderr)[0]
    before = daemon_of(computer)
    computer.ok(command)
    assert daemon_of(computer) != before
    assert computer.ok("systemctl show opsq --property=Result --value") == "success"


def test_daemon_that_is_killed_or_hangs_is_started_again(computer: Machine) -> None:
    computer.ok(
        "mkdir /etc/systemd/system/opsq.service.d; cat > /etc/systemd/system/opsq.service.d/soon.conf",
        stdin="[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n",
    )
    computer.ok("systemctl daemon-reload")
    enable(computer, "opsq")
    for sent in ("KILL", "STOP"):
        before = {"0", str(daemon_of(computer))}
        computer.ok(f"systemctl kill --signal={sent} opsq")
        wait_until(lambda before=before: main_process(computer) not in before, 60, "it was started again")
        wait_until(lambda: computer.run("systemctl is-active --quiet opsq").returncode == 0, 60, "it is ready")


def test_queue_of_a_service_is_shared_by_a_group(computer: Machine) -> None:
    """As opsq-admin(7) says."""
    page = (REPOSITORY / "man" / "opsq-admin.7").read_text().replace("\\-", "-")
    recipe = re.findall(r"(?ms)^useradd .*?(?=^\.EE)", page)[0]
    computer.ok("useradd --user-group ada; useradd --user-group bob")
    computer.ok("mkdir /etc/systemd/system/opsq.service.d")
    for line in recipe.splitlines():
        command, _, rest = line.partition("#")
        if setting := re.findall(r"under \[Service\]: (.*)", rest):
            path = "/etc/systemd/system/opsq.service.d/override.conf"
            computer.ok(f"cat > {path}; systemctl daemon-reload", stdin=f"[Service]\n{setting[0]}\n")
        elif not command.startswith("cp "):
            computer.ok(command)
    computer.ok("usermod -aG opsq bob")
    for producer, consumer in (("ada", "bob"), ("opsq", "ada"), ("bob", "root")):
        assert is_round(computer, producer, consumer), (producer, consumer)
    computer.ok("useradd --user-group eve")
    assert computer.run(f"{IN}opsq list", "eve").returncode == 7


def test_consumer_gateway_and_notifier_work_beside_the_daemon(computer: Machine) -> None:
    computer.ok("cat > /usr/local/libexec/work; chmod +x /usr/local/libexec/work", stdin="#!/bin/sh\ntr a-z A-Z\n")
    computer.ok("mkdir /etc/opsq; cat > /etc/opsq/opsq.toml", stdin='[on]\ncompleted = ["touch", "/tmp/notified"]\n')
    enable(computer, "opsq opsq-consumer opsq-gateway opsq-notify")
    submission = computer.ok(f"{IN}opsq submit -", stdin="hello\n")
    computer.ok(f"{IN}opsq wait {submission}")
    assert computer.ok(f"{IN}opsq results {submission}") == "HELLO"
    wait_until(lambda: computer.ok("find /tmp -name notified"), 60, "the notifier has run its program")
    assert computer.ok("systemctl is-active opsq opsq-consumer opsq-gateway opsq-notify").split() == ["active"] * 4


def test_two_users_have_a_queue_each(computer: Machine) -> None:
    for user in ("ada", "bob"):
        computer.ok(f"useradd --create-home --user-group {user}; chmod 0755 /home/{user}")
        computer.ok(f"export HOME=/home/{user}; opsq start; echo {user} | opsq submit -", user)
    for user, other in (("ada", "bob"), ("bob", "ada")):
        computer.ok(f"export HOME=/home/{user}; test $(opsq list | wc -l) = 1; opsq doctor", user)
        assert computer.run(f"opsq list --state-dir /home/{other}/.local/state/opsq", user).returncode == 7
        assert computer.ok(f"export HOME=/home/{user}; opsq consume --until-empty -- cat >&2; opsq stop", user) == ""


# --- a container --------------------------------------------------------------------------------------------------


def test_container_reaps_what_ends_in_it_and_needs_neither_its_root_nor_privileges(runtime_dir: Path) -> None:
    """Containerfile: its command as process 1 of a machine that is read-only but for the volume."""
    text = (REPOSITORY / "examples" / "Containerfile").read_text()
    volume = re.findall(r"(?m)^VOLUME (\S+)$", text)[0]
    words = re.findall(r"(?m)^(?:ENTRYPOINT|CMD) \[(.*)\]$", text)
    command = " ".join(word for part in words for word in re.findall('"(.*?)"', part))
    assert command == "opsq start --foreground"
    assert f"ENV OPSQ_STATE_DIR={volume}\n" in text
    (uid,) = re.findall(r"(?m)^USER (\d+)$", text)
    prepared = f"""
        mkdir -p {volume}
        mount -t tmpfs -o uid={uid},gid={uid},mode=0700 tmpfs {volume}
        mount -o remount,ro /dev
        mount -o remount,ro /
        export OPSQ_STATE_DIR={volume}
        exec setpriv --reuid={uid} --regid={uid} --clear-groups --bounding-set=-all --no-new-privs {command}
    """
    with machine(runtime_dir, "sh", "-ec", prepared) as found:
        wait_until(lambda: found.run(f"{IN}opsq status", uid).returncode == 0, 60, "the daemon answers")
        assert found.run("touch /x /tmp/x").returncode != 0
        assert is_round(found, uid, uid)
        assert (
            found.ok("cat /proc/1/comm /proc/1/status | grep -E 'opsq|python|CapEff|NoNewPrivs' | sort -u") is not None
        )
        orphans = found.ok("for _ in 1 2 3; do sleep 0.01 & echo $!; done").split()
        gone = " && ".join(f"[ ! -e /proc/{pid} ]" for pid in orphans)
        wait_until(lambda: found.run(gone).returncode == 0, 60, "no zombie is left")
        refused = found.run(f"{IN}opsq restart", uid)
        assert (refused.returncode, "podman restart" in refused.stderr) == (5, True)
        os.kill(found.init, signal.SIGTERM)
        assert found.process.wait(60) == 0
