"""Finds the content of a submission and the store that holds it.

It must stay cheap to import, since hot verbs use it, and must not read any chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.errors import ContentMissing, NotFound
from opsq.wire.messages import Describe, Described, SubmissionContent

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.content_store import Store
    from opsq.content.manifest import Content


def content_of(daemon: Connection, submission_id: int) -> tuple[Content, Store]:
    """The description of the content of a submission, and the store of the daemon.

    Raises:
        NotFound: there is no such submission.
        ContentMissing: it has no content.
    """
    described = _describe(daemon, submission_id)
    from opsq.content.manifest import decode
    from opsq.content.store_kinds import open_store

    return decode(described.content), open_store(daemon.welcome.store)


def reader_of(daemon: Connection, submission_id: int) -> ChunkReader:
    """What reads the chunks of a submission; raises as `content_of`, and where the store is needed as `Contents`."""
    described = _describe(daemon, submission_id)
    from opsq.client.core.content_access import Contents

    return Contents(daemon.welcome).reader(described)


def _describe(daemon: Connection, submission_id: int) -> SubmissionContent:
    described = daemon.call(Describe(daemon.next_id(), [submission_id]), Described).submissions
    if not described:
        raise NotFound(cause="unknown_submission", submission_id=submission_id)
    if not described[0].content:
        raise ContentMissing(f"Submission {submission_id} has no content.")
    return described[0]
