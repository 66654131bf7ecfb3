"""A reply that cannot be sent becomes an error of its own request; those beside it arrive."""

from __future__ import annotations

from typing import Any, cast

from opsq.errors import Bug, OpsqError
from opsq.wire.frames import reply_reader
from opsq.wire.messages import Alive, Changed, Checked, ErrorReply, Reply
from opsq.wire.reply_frames import write_replies


class Written:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self._reader = reply_reader()

    def write(self, frame: bytes) -> None:
        self.replies += self._reader.feed(frame)


def written(replies: list[Reply], limit_bytes: int = 1 << 16) -> tuple[list[Reply], list[Exception]]:
    transport, reported = Written(), []

    def report(error: Exception) -> OpsqError:
        reported.append(error)
        return Bug()

    write_replies(cast("Any", transport), replies, limit_bytes, report)
    return transport.replies, reported


def test_reply_that_cannot_be_encoded_is_a_bug_of_its_request_alone():
    replies, reported = written([Alive(1), Changed(2, 1 << 70), Alive(3)])
    assert [(type(reply), reply.id) for reply in replies] == [(Alive, 1), (ErrorReply, 2), (Alive, 3)]
    assert replies[1].code == "bug"
    assert len(reported) == 1


def test_replies_longer_than_a_frame_go_in_several_and_one_alone_is_refused():
    long = Checked(2, ["x" * 600])
    replies, reported = written([long, Checked(3, ["x" * 2000]), long], 1000)
    assert [(type(reply), reply.id) for reply in replies] == [(Checked, 2), (ErrorReply, 3), (Checked, 2)]
    assert replies[1].code == "protocol"
    assert not reported
