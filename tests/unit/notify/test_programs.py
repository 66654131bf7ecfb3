"""Programs that are run for events: what they get, and how they fail."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from opsq.notify import programs
from opsq.notify.programs import Programs, variables
from opsq.notify.target import Delivery, Failure
from unit.notify.test_webhooks import event

DELIVERY = Delivery("msg_1", event())
PATH = {"PATH": os.environ["PATH"]}


def run(*command: str, limit_s: float = 60.0) -> Failure | None:
    return Programs({"failed": command}, limit_s, PATH).deliver(DELIVERY)


def test_program_gets_the_event_on_stdin_and_its_fields_in_the_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        run("sh", "-c", f'cat > {out}; echo "$OPSQ_EVENT_KIND/$OPSQ_EVENT_SUBMISSION_ID/$OPSQ_EVENT_BY" >> {out}')
        is None
    )
    document, fields = out.read_text().splitlines()
    assert msgspec.json.decode(document, type=type(DELIVERY.event)) == DELIVERY.event
    assert fields == "failed/7/"


def test_program_that_reads_nothing_has_taken_it() -> None:
    assert run("true") is None


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("sh", "-c", "echo no mail >&2; exit 3"), "sh: exit status 3: no mail"),
        (("sh", "-c", "kill -9 $$"), "sh: signal 9"),
        (("/no/such/program",), "program: it cannot be started: No such file or directory"),
        (("a\0b",), "a\0b: it cannot be started: embedded null byte"),
    ],
)
def test_failure_says_why(command: tuple[str, ...], text: str) -> None:
    assert run(*command) == Failure(text)


def test_of_long_output_the_end_is_kept() -> None:
    failure = run("sh", "-c", "yes | head -c 1000000; echo end; exit 1")
    assert failure is not None
    assert failure.text.endswith("end")
    assert len(failure.text) < 600


def test_program_that_takes_too_long_is_killed_with_its_children() -> None:
    assert run("sh", "-c", "sleep 1000 & sleep 1000", limit_s=0.2) == Failure("sh: it was killed after 0.2 s")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_program_that_may_not_be_killed_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group_id: int, number: int) -> bool:
        os.killpg(group_id, number)
        return False

    monkeypatch.setattr(programs, "signal_group", refuse)
    failure = run("sleep", "1000", limit_s=0.2)
    assert failure == Failure("sleep: it runs for more than 0.2 s as another user, and cannot be killed")


def test_program_that_is_not_named_any_more_is_never_run() -> None:
    failure = Programs({"dead": ("true",)}, 60.0, PATH).deliver(DELIVERY)
    assert failure == Failure("[on] has no program for failed any more", is_final=True)


def test_abandoned_program_is_killed() -> None:
    program = Programs({"failed": ("sleep", "1000")}, 500.0, PATH)
    program.abandon()
    assert program.deliver(DELIVERY) == Failure("sleep: signal 9")


def test_no_variable_holds_a_null_byte_or_the_metadata() -> None:
    found = variables(msgspec.structs.replace(event(), reason="a\0b"))
    assert found["OPSQ_EVENT_REASON"] == "ab"
    assert found["OPSQ_EVENT_TITLE"] == ""
    assert "OPSQ_EVENT_METADATA" not in found
