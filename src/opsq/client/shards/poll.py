"""Asks several shards at once and waits for all answers; one that is away too long answers that it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from opsq.client.shards.shard import QUESTION_S, Shard
from opsq.errors import Unreachable
from opsq.wire.messages import ErrorReply, Reply, Request

Replies = dict[Shard, Reply]
"""In the order in which the shards were named."""


def poll(questions: Mapping[Shard, Request], done: Callable[[Replies], None], patience_s: float = QUESTION_S) -> None:
    """Ask each shard its question, and call `done` with the answers of all."""
    replies: Replies = {}

    def heard(shard: Shard, reply: Reply) -> None:
        replies[shard] = reply
        if len(replies) == len(questions):
            done({one: replies[one] for one in questions})

    for shard, question in questions.items():
        shard.ask(question, functools.partial(heard, shard), patience_s)
    if not questions:
        done({})


def code_of(reply: Reply) -> str:
    """The code of an error; empty: it is none."""
    return reply.code if isinstance(reply, ErrorReply) else ""


def is_gone(reply: Reply) -> bool:
    """Whether this is said of a shard that cannot be reached."""
    return code_of(reply) == Unreachable.code
