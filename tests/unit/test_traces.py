"""W3C trace context: what is read, what is passed on, and what a submission carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq import traces
from opsq.content.manifest import Content, encode

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CONTENT = Content("folder", 1, 3, inline=[b"abc"])


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "-more",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        PARENT[:-1],
        PARENT.replace("-", "_"),
        "00-4bf92f3577b34da6a3ce929d0e0e473٣-00f067aa0ba902b7-01",
    ],
)
def test_what_w3c_does_not_allow_is_no_context(parent: str) -> None:
    assert traces.read({"traceparent": parent, "tracestate": "a=b"}) is None


def test_later_version_is_passed_on_as_the_one_we_know() -> None:
    assert traces.read({"traceparent": "cc" + PARENT[2:] + "-what-ever"}) == (PARENT, "")


@pytest.mark.parametrize("state", ["x" * 513, "a=\x00", "a=ä", "a=b\r\nevil: c"])
def test_tracestate_that_cannot_be_passed_on_is_left_out_alone(state: str) -> None:
    assert traces.read({"traceparent": PARENT, "tracestate": state}) == (PARENT, "")


@given(st.text(max_size=80), st.text(max_size=600))
def test_nothing_that_a_client_says_is_an_error(parent: str, state: str) -> None:
    found = traces.read({"traceparent": parent, "tracestate": state})
    assert found is None or traces.read(found.as_fields()) == found


def test_submission_carries_what_its_producer_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    monkeypatch.setenv("TRACESTATE", "vendor=1")
    found = traces.carried_by(encode(traces.carrying(CONTENT)))
    assert found == (PARENT, "vendor=1")
    assert found is not None
    assert found.variables == {"TRACEPARENT": PARENT, "TRACESTATE": "vendor=1"}


def test_content_without_a_context_is_what_it_always_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    assert traces.carrying(CONTENT) is CONTENT
    assert traces.carried_by(encode(CONTENT)) is None


def test_what_is_given_hides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT)
    with traces.given(None):
        assert traces.current() is None
        with traces.given(traces.TraceContext(PARENT, "a=b")):
            assert traces.current() == (PARENT, "a=b")
    assert traces.current() == (PARENT, "")
