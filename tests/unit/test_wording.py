"""Sentences of refusals and explanations: every code that the engine gives has one, which uses what it is given."""

from __future__ import annotations

import ast
import pickle
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq import findings, wording
from opsq.errors import Conflict, NotFound, OpsqError
from opsq.wire.messages import ErrorReply, Refusal, WorkExplained

SRC = Path(wording.__file__).parent
COMPUTED = {"slots": {"pair", "count", "bound"}, "counts": set(), "removable": set()}
"""Fields that are made of other details."""
SPREAD = {"keys_taken", "key_taken", "disk", "disk_for_content", "counts"}
"""Causes that are chosen where they are given, or whose details are not all literal."""


def calls() -> Iterator[tuple[str, set[str]]]:
    """Every `Error(cause="…", …)` and `finding("…", …)` in the sources: its code, and the details that it names."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            details = {keyword.arg for keyword in node.keywords if keyword.arg} - {"cause"}
            causes = [keyword.value for keyword in node.keywords if keyword.arg == "cause"]
            if isinstance(node.func, ast.Name) and node.func.id == "finding" and node.args:
                causes.append(node.args[0])
            for cause in causes:
                for part in ast.walk(cause):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value[-1:].isalpha():
                        yield part.value, details


def fields(template: str) -> set[str]:
    """The details that a template uses."""
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_code_of_the_engine_has_a_sentence_that_uses_its_details() -> None:
    """Details that a sentence does not use, or lacks, are a mistake of one of the two."""
    templates = {**wording.REFUSALS, **findings.CAUSES, **findings.FACTS}
    found = list(calls())
    assert len(found) > 60
    for code, details in found:
        assert code in templates, f"{code} has no sentence in opsq.wording or opsq.findings"
        wanted = fields(templates[code]) - set(COMPUTED)
        if code not in SPREAD:
            assert wanted <= details, f"{code} lacks {wanted - details}"


def test_every_sentence_has_a_code_that_somebody_gives() -> None:
    """What was renamed does not stay behind."""
    texts = "\n".join(path.read_text() for path in SRC.rglob("*.py") if path.name not in {"wording.py", "findings.py"})
    codes = [*wording.REFUSALS, *findings.CAUSES, *(code for code in findings.FACTS if not code.startswith("place_"))]
    assert [code for code in codes if f'"{code}"' not in texts] == []


def test_error_travels_as_a_code_with_details_and_is_worded_where_it_arrives() -> None:
    reply = ErrorReply.of(7, NotFound(cause="unknown_submission", submission_id=12))
    assert (reply.code, reply.message, reply.hint, reply.details) == ("not_found", "", "", {"submission_id": 12})
    error = reply.error()
    assert isinstance(error, NotFound)
    assert str(error) == "Submission 12 is not known. `opsq list` shows the known ones."


def test_error_with_a_cause_keeps_what_is_added_to_it_and_can_be_pickled() -> None:
    """Spark and worker processes send errors between processes; verbs add hints of their own."""
    error = pickle.loads(pickle.dumps(NotFound(cause="unknown_submission", submission_id=12)))
    error.hint = "Start the daemon."
    assert str(error) == "Submission 12 is not known. Start the daemon."


def test_error_without_a_cause_travels_as_its_text() -> None:
    error = ErrorReply.of(7, Conflict("Taken.", hint="Wait.")).error()
    assert isinstance(error, Conflict)
    assert (error.message, error.hint, error.cause) == ("Taken.", "Wait.", "")


def test_cause_of_a_newer_daemon_is_written_as_it_came() -> None:
    error = ErrorReply(7, "brand_new", cause="too_many_moons", details={"moons": 3}).error()
    assert type(error) is OpsqError
    assert error.message == "too_many_moons: moons 3"


def test_refusal_that_lacks_a_detail_is_written_as_it_came() -> None:
    assert ErrorReply(7, "conflict", cause="not_finished", details={"state": "open"}).error().message == (
        "not_finished: state open"
    )


def test_what_was_done_before_a_refusal_is_said() -> None:
    message = ErrorReply.of(7, Conflict(cause="stopping"), done=512).error().message
    assert message == "The daemon is stopping. Already done: 512."


def test_refusal_of_chunks_names_the_first_of_them() -> None:
    assert Refusal(12, 1, 0b110, "reservation_lost", "chunk_finished").message == "Chunk 12/65 is finished."


@pytest.mark.parametrize(
    ("details", "text"),
    [
        ({"pair": "tenant=a", "count": 1, "bound": 2}, "tenant=a has 1 of 2 chunks reserved"),
        ({"count": 1, "bound": 2}, "1 of its 2 slots are taken by chunks reserved or in back-off"),
        ({}, "all that the strategy allows is taken"),
    ],
)
def test_what_a_gate_has_given_is_said_by_its_key(details: dict[str, int | str], text: str) -> None:
    (sentence,) = findings.explanation("Chunk 1/2", [("gated", details)], 0)
    assert sentence == f"Chunk 1/2 is blocked by the strategies of the consumers: {text}."


def test_causes_after_the_first_start_with_also() -> None:
    found = [("next", {}), ("retries", {"due_at": 90_000}), ("counts", {"total": 1, "in_back_off": 1})]
    assert findings.explanation("Submission 1", found, 0) == [
        "Submission 1 is next.",
        "Also, it waits for retries, the next due 1970-01-01T00:01:30Z (in 1m 30s).",
        "1 chunk: 1 in back-off.",
    ]


def test_findings_of_a_newer_daemon_are_written_as_they_came() -> None:
    assert WorkExplained(1, 2, None, "moonlit", [], 0).reasons == []
    assert findings.explanation("Submission 1", [("moonlit", {})], 0) == ["moonlit"]
