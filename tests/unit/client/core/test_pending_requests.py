"""Requests on their way: those that cannot be sent are answered, and keep no other from being sent."""

from __future__ import annotations

from collections.abc import Sequence

from opsq.client.core.pending_requests import refused
from opsq.errors import UsageError
from opsq.wire.messages import ChunkMask, ErrorReply, Request, Requeue, Started


def test_each_request_that_is_too_long_is_refused_and_the_others_are_sent() -> None:
    sent: list[Request] = []

    def send(requests: Sequence[Request]) -> None:
        if any(isinstance(request, Requeue) and request.submission_id == 0 for request in requests):
            raise UsageError("It is too long.")
        sent.extend(requests)

    requests = [Requeue(number, number % 3) for number in range(1, 11)]
    assert [(reply.id, reply.code) for reply in refused(send, requests)] == [(3, "usage"), (6, "usage"), (9, "usage")]
    assert [request.id for request in sent if isinstance(request, Requeue)] == [1, 2, 4, 5, 7, 8, 10]


def test_message_that_wants_no_answer_gets_none_if_it_is_too_long() -> None:
    """One with no id would be an error of the whole connection."""

    def send(requests: Sequence[Request]) -> None:
        raise UsageError("It is too long.")

    replies: list[ErrorReply] = refused(send, [Started([ChunkMask(1, 0, 1)]), Requeue(5, 1)])
    assert [reply.id for reply in replies] == [5]
