"""Which role permits what, for every request there is."""

from __future__ import annotations

from typing import get_args

import pytest

from opsq.daemon.permissions import check_permitted, straight
from opsq.daemon.tokens_file import TokenEntry
from opsq.errors import NotPermitted
from opsq.wire.messages import (
    Complete,
    CompleteAndReserve,
    Completion,
    HeldChunks,
    NewSubmission,
    Pause,
    Request,
    Resume,
)
from opsq.wire.roles import CONSUMER, OPERATOR, PERMITTED, PRODUCER, READ_ONLY, ROLES, parse_roles, permitting

REQUESTS = get_args(Request)

EXPECTED = {
    READ_ONLY: "Hello Heartbeat CancelWait Describe GetAttachment Show List Wait Results Dead History Status Running"
    " Explain ExplainWork ShowRules ShowSchedules Events",
    PRODUCER: "Submit Find Withdraw CheckCapacity Cancel Requeue Pause Resume"
    " PutSchedule RemoveSchedule PauseSchedule ResumeSchedule TriggerSchedule BackfillSchedule",
    CONSUMER: "Reserve Started Complete CompleteAndReserve Fail Release Extend Reclaim Pause Resume",
}
"""Written a second time on purpose: what a role may do is a promise. Producers and consumers may read, too."""


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_request_permits_whom_it_should_and_nobody_else(kind):
    names = {role: set(EXPECTED[role].split()) | set(EXPECTED[READ_ONLY].split()) for role in EXPECTED}
    wanted = {OPERATOR} | {role for role, permitted in names.items() if kind.__name__ in permitted}
    assert PERMITTED[kind] == wanted


def test_table_has_no_other_requests():
    assert set(PERMITTED) == set(REQUESTS)


def test_pause_in_the_name_of_operators_needs_one():
    for kind in (Pause, Resume):
        assert permitting(kind(1)) == ({OPERATOR, PRODUCER, CONSUMER},)
        assert permitting(kind(1, by_operator=True)) == ({OPERATOR},)


def test_completion_with_follow_ups_needs_a_producer_too():
    held = HeldChunks(1, 0, 1, 1, 0, 1, 0)
    followed = [Completion(held), Completion(held, then=[NewSubmission(bytes(16), 1)])]
    for request in (Complete(1, followed), CompleteAndReserve(1, followed, 1)):
        assert permitting(request) == ({OPERATOR, CONSUMER}, {OPERATOR, PRODUCER})
        with pytest.raises(NotPermitted):
            check_permitted(request, TokenEntry("worker", frozenset((CONSUMER,)), b""))
        check_permitted(request, TokenEntry("both", frozenset((CONSUMER, PRODUCER)), b""))
    assert permitting(Complete(1, followed[:1])) == ({OPERATOR, CONSUMER},)


def test_completions_of_a_mere_consumer_are_looked_at():
    kinds = {Complete, CompleteAndReserve}
    assert not straight(frozenset((CONSUMER,))) & kinds
    for roles in ((OPERATOR,), (CONSUMER, PRODUCER)):
        assert kinds <= straight(frozenset(roles))


def test_roles_are_read_as_they_are_written():
    assert parse_roles("consumer,producer") == {PRODUCER, CONSUMER}
    for text in ("", "root", "producer,", "producer, consumer"):
        with pytest.raises(ValueError, match="is not a role; roles are " + ", ".join(ROLES)):
            parse_roles(text)
