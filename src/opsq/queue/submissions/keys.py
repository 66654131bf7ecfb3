"""What keys of producers have made: request keys, idempotency keys, and requests that were taken back before they came.

Must not make submissions, nor know unique keys, which are free again when their submission has ended.
"""

from __future__ import annotations

from opsq.clock import Now
from opsq.errors import Conflict, UsageError
from opsq.ids import SubmissionId
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState, has_moved
from opsq.store import idempotency_keys, submissions
from opsq.wire.messages import Find, Found, NewSubmission, Withdraw


class Keys:
    """Knows which submission a key has made, also one whose commit is under way."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._by_request_key: dict[bytes, tuple[SubmissionId, bytes]] = {}
        self._by_idempotency_key: dict[str, SubmissionId] = {}
        self._withdrawing: set[bytes] = set()

    def known(self, new: NewSubmission, now: Now) -> SubmissionId | None:
        """The submission that this request has made before, or that its idempotency key has."""
        known = self._by_request(new.request_key)
        if known is None and new.idempotency_key is not None:
            keep_s = new.idempotency_keep_s
            ended_from = 0 if keep_s is None else max(now.wall - int(keep_s * 1000), 0)
            known = self._by_idempotency(new.idempotency_key, ended_from)
        return known

    def check(self, new: NewSubmission) -> None:
        """Make sure that a request may make a submission, or has made the very one that it asks for.

        Raises:
            Conflict: it was taken back, or its key has made a submission of other content.
            Moved: one of its keys has made a submission that is on another daemon by now.
        """
        key = new.request_key
        self._check_moved(key, new.idempotency_key)
        if key in self._withdrawing or idempotency_keys.is_withdrawn(self._state.reader, key):
            raise Conflict(cause="withdrawn", key=key.hex())
        under_way = self._by_request_key.get(key)
        if under_way is not None:
            known, content = under_way
        else:
            found = submissions.by_request_key(self._state.reader, key)
            if found is None:
                return
            known, content = found, submissions.content(self._state.reader, found)
        if content != new.content:
            raise Conflict(cause="other_content", key=key.hex(), submission_id=known)

    def holder(self, request_key: bytes, idempotency_key: str | None) -> SubmissionId | None:
        """The submission that has one of these keys, also one on its way here."""
        known = self._by_request(request_key)
        return self._by_idempotency(idempotency_key) if known is None and idempotency_key is not None else known

    def enter(
        self, request_key: bytes, idempotency_key: str | None, content: bytes, submission_id: SubmissionId
    ) -> None:
        """A submission is part of a batch."""
        self._by_request_key[request_key] = (submission_id, content)
        if idempotency_key is not None:
            self._by_idempotency_key[idempotency_key] = submission_id

    def leave(self, request_key: bytes, idempotency_key: str | None) -> None:
        """The batch of a submission has ended, one way or the other: the file tells."""
        self._by_request_key.pop(request_key, None)
        if idempotency_key is not None:
            self._by_idempotency_key.pop(idempotency_key, None)

    def find(self, peer: Peer, request: Find) -> None:
        """Answer which submission a key has made; one that is being committed is reported after the commit."""
        if (request.request_key is None) == (request.idempotency_key is None):
            raise UsageError(cause="one_key_needed")
        self._check_moved(request.request_key, request.idempotency_key)
        if request.request_key is not None:
            known = self._by_request(request.request_key)
            is_withdrawn = request.request_key in self._withdrawing or idempotency_keys.is_withdrawn(
                self._state.reader, request.request_key
            )
        else:
            known, is_withdrawn = self._by_idempotency(request.idempotency_key or ""), False
        self._state.batch.replies.append((peer, Found(request.id, known, is_withdrawn)))

    def withdraw(self, peer: Peer, request: Withdraw, now: Now) -> None:
        """Withdraw a request: it never makes a submission, or has made one already, which is reported and kept."""
        state, key = self._state, request.request_key
        self._check_moved(key, None)
        known = self._by_request(key)
        if known is None and key not in self._withdrawing and not idempotency_keys.is_withdrawn(state.reader, key):
            self._withdrawing.add(key)
            state.batch.add(
                lambda _: self._withdrawing.discard(key),
                lambda _: self._withdrawing.discard(key),
                lambda database, _: idempotency_keys.withdraw(database.writer, key, now.wall),
            )
        state.batch.replies.append((peer, Found(request.id, known, known is None)))

    def _check_moved(self, request_key: bytes | None, idempotency_key: str | None) -> None:
        row = self._state.moved_by_key(request_key, idempotency_key)
        if row is not None:
            raise has_moved(row)

    def _by_request(self, request_key: bytes) -> SubmissionId | None:
        under_way = self._by_request_key.get(request_key)
        return under_way[0] if under_way is not None else submissions.by_request_key(self._state.reader, request_key)

    def _by_idempotency(self, key: str, ended_from: int = 0) -> SubmissionId | None:
        under_way = self._by_idempotency_key.get(key)
        return under_way or idempotency_keys.by_idempotency_key(self._state.reader, key, ended_from)
