"""Content goes only where the daemon says that its request key has made nothing; what ends a Submit says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.content_access import Contents
from opsq.client.core.follow_ups import prepared
from opsq.client.core.new_submission import new_request_key, new_submission, write_content
from opsq.client.core.unused_content import delete_unused
from opsq.client.sync.producer import Producer
from opsq.content.manifest import encode
from opsq.content.store_kinds import open_store
from opsq.errors import NoRoom, NotPermitted, OpsqError, Refused, TimedOut, TooManyConnections, UsageError
from opsq.wire.messages import (
    Created,
    ErrorReply,
    Found,
    NewSubmission,
    Reply,
    Request,
    Submit,
    Submitted,
    Welcome,
    Withdraw,
)
from scripted import ScriptedDaemon, silence, welcome

DENIED = None
OURS = 5


@pytest.fixture
def greeting(tmp_path: Path) -> Welcome:
    """Of a daemon that has a store."""
    path = str(tmp_path / "content")
    return replace(welcome(), store=path, store_marker=open_store(path).mark())


@pytest.fixture
def contents(greeting: Welcome) -> Contents:
    return Contents(greeting)


def written(contents: Contents, greeting: Welcome, size_bytes: int = 10_000) -> NewSubmission:
    """A submission whose content is there."""
    key = new_request_key()
    content = write_content([bytes(size_bytes)], key, contents, greeting)
    return new_submission(key, encode(content), 1, unique_key="u")


def kept(submissions: Sequence[NewSubmission], contents: Contents) -> list[bool]:
    """Of which the content is there."""
    folders = set(contents.store.folders())
    return [new.request_key.hex() in folders for new in submissions]


def test_only_content_whose_submission_the_daemon_denies_is_deleted(contents: Contents, greeting: Welcome) -> None:
    news = [written(contents, greeting) for _ in range(3)]
    made = {news[1].request_key: OURS}
    delete_unused(news, contents, lambda key: Found(1, made.get(key), key not in made))
    assert kept(news, contents) == [False, True, False]


def test_all_content_stays_from_the_first_of_which_the_daemon_does_not_say(
    contents: Contents, greeting: Welcome
) -> None:
    news = [written(contents, greeting) for _ in range(3)]
    answers: list[Found | OpsqError] = [Found(1, DENIED, True), TimedOut(), Found(3, DENIED, True)]

    def ask(_: bytes) -> Found:
        answer = answers.pop(0)
        if isinstance(answer, OpsqError):
            raise answer
        return answer

    delete_unused(news, contents, ask)
    assert kept(news, contents) == [False, True, True]


def test_submission_that_carries_its_content_is_not_asked_for(contents: Contents, greeting: Welcome) -> None:
    """It may be handed over again."""
    asked: list[bytes] = []

    def ask(key: bytes) -> Found:
        asked.append(key)
        return Found(1, DENIED, True)

    delete_unused([written(contents, greeting, 10)], contents, ask)
    assert asked == []


Outcome = Created | OpsqError | str


class Story(ScriptedDaemon):
    """A daemon that ends a Submit in a given way, and knows what that has made.

    Args:
        outcome: an answer to the Submit; "session": what ends the session, and answers nothing; "reconnect": the
            connection breaks, and the next is refused for a moment.
    """

    def __init__(self, greeting: Welcome, outcome: Outcome, made: int | None) -> None:
        super().__init__(self._told)
        self.greeting = greeting
        self._outcome = outcome
        self._made = made

    def open_wire(self):  # as that of the base
        wire = super().open_wire()
        wire.welcome = self.greeting
        return wire

    def _told(self, request: Request) -> Sequence[Reply]:
        match request, self._outcome:
            case Withdraw(), _:
                return [Found(request.id, self._made, self._made is None)]
            case Submit(), Created() as created:
                return [Submitted(request.id, [created] * len(request.submissions))]
            case Submit(), OpsqError() as error:
                return [ErrorReply.of(request.id, error)]
            case Submit(), "session":
                return [ErrorReply.of(0, Refused(cause="too_many_unread", limit="1 MiB"))]
            case Submit(), "reconnect":
                self._outcome = "back"
                self.refusal = NotPermitted("Revoked.")
                self.wire.close()
                return []
        return silence(request)


def hand_over_blocking(story: Story, new: NewSubmission) -> None:
    producer = Producer(story.open_wire)
    try:
        producer.submit_many([new])
    finally:
        producer.close()


class AwaitedLink:
    """A link to a daemon of a story."""

    def __init__(self, story: Story) -> None:
        self._producer = Producer(story.open_wire)
        self.next_id = self._producer.link.next_id

    async def call(self, *request: object) -> object:
        """The answer."""
        return self._producer.link.call(*request)  # type: ignore[arg-type]  # as it was called

    def close(self) -> None:
        """End the connection."""
        self._producer.close()


def hand_over_awaited(story: Story, new: NewSubmission) -> None:
    queue = AsyncQueue("/nowhere", name="", token="", reconnect_s=0.0)
    link = AwaitedLink(story)
    queue.link = link  # type: ignore[assignment]  # what is called of it
    queue.contents = Contents(story.greeting)
    try:
        asyncio.run(queue.submit_many([new]))  # type: ignore[arg-type]  # a coroutine
    finally:
        link.close()


HandOver = Callable[[Story, NewSubmission], None]


@pytest.fixture(params=[hand_over_blocking, hand_over_awaited])
def hand_over(request: pytest.FixtureRequest) -> HandOver:
    """Hands a submission over, and fails as that does."""
    found: HandOver = request.param
    return found


@pytest.mark.parametrize("outcome", ["session", "reconnect", TooManyConnections(), UsageError(cause="no_replica")])
def test_content_of_a_submission_that_is_stored_outlives_whatever_ends_the_call(
    contents: Contents, greeting: Welcome, hand_over: HandOver, outcome: Outcome
) -> None:
    """Also a refusal: it may answer the second of two."""
    new = written(contents, greeting)
    with pytest.raises(OpsqError):
        hand_over(Story(greeting, outcome, OURS), new)
    assert kept([new], contents) == [True]


def test_content_of_a_refused_submission_is_deleted(contents: Contents, greeting: Welcome, hand_over: HandOver) -> None:
    new = written(contents, greeting)
    with pytest.raises(NoRoom):
        hand_over(Story(greeting, NoRoom(), DENIED), new)
    assert kept([new], contents) == [False]


@pytest.mark.parametrize(("made", "is_kept"), [(OURS, True), (DENIED, False)])
def test_content_stays_if_the_submission_that_existed_is_the_one_that_was_handed_over(
    contents: Contents, greeting: Welcome, hand_over: HandOver, made: int | None, is_kept: bool
) -> None:
    """The frame was sent again; else another one had the unique key."""
    new = written(contents, greeting)
    hand_over(Story(greeting, Created(OURS, False), made), new)
    assert kept([new], contents) == [is_kept]


def test_follow_ups_that_cannot_be_prepared_leave_alone_what_was_written_before(
    contents: Contents, greeting: Welcome
) -> None:
    new = written(contents, greeting)
    then: list[object] = [new, "no follow-up"]
    with pytest.raises(UsageError, match="str"):
        prepared(then, contents, greeting, None)  # type: ignore[arg-type]  # that is the mistake
    assert kept([new], contents) == [True]
