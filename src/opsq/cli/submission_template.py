"""A submission as a template for a new one: `opsq submit --from-json` takes what `opsq show --json ID` prints.

It must not write anything.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from opsq.cli.submission_content import reader_of
from opsq.client.sync.connection import Connection
from opsq.content.chunk_reader import ChunkReader
from opsq.documents.submissions import BackoffShape
from opsq.errors import InputUnreadable, NotFound, UsageError
from opsq.ids import parse_submission_id
from opsq.wire.impossible_fields import checked
from opsq.wire.messages import RESERVATION_MIN_S, Attachment, Backoff, GetAttachment, NewSubmission


class Template(msgspec.Struct, frozen=True):
    """The fields of a `SubmissionShape` that a new submission takes over; all others are ignored, also --unique."""

    submission_id: str | None = None
    metadata: dict[str, int | str] = {}
    priority: int = 0
    max_attempts: int | None = None
    max_lost: int | None = None
    backoff: BackoffShape | None = None
    on_dead: Literal["fail", "keep"] = "fail"
    reservation_s: Annotated[float, msgspec.Meta(ge=RESERVATION_MIN_S)] | None = None
    has_attachment: bool = False
    title: str | None = None

    def rules(self, *, metadata: dict[str, int | str] | None = None, **given: Any) -> NewSubmission:
        """A new submission without content.

        Args:
            metadata: more than the template has; stronger where both have a key.
            given: other fields of a `NewSubmission`, stronger than the template; None means "not given".

        Raises:
            UsageError: a field has a value that its type does not allow.
        """
        own = NewSubmission(
            os.urandom(16),
            0,
            metadata=self.metadata | (metadata or {}),
            priority=self.priority,
            max_attempts=self.max_attempts,
            max_lost=self.max_lost,
            backoff=Backoff(self.backoff.base_s, self.backoff.factor, self.backoff.max_s) if self.backoff else None,
            keep_on_dead=self.on_dead == "keep",
            reservation_s=self.reservation_s,
            title=self.title,
        )
        return checked(replace(own, **{name: field for name, field in given.items() if field is not None}))

    def open_source(self, daemon: Connection) -> ChunkReader:
        """A reader of the chunks of the submission that the template shows."""
        submission_id = parse_submission_id(self.submission_id or "")
        try:
            return reader_of(daemon, submission_id)
        except NotFound as error:
            error.hint = "Name the FILE to submit."
            raise

    def with_attachment(self, daemon: Connection, rules: NewSubmission) -> NewSubmission:
        """`rules` with the attachment of the submission that the template shows, unless they have one."""
        if rules.attachment is not None or not self.has_attachment or self.submission_id is None:
            return rules
        request = GetAttachment(daemon.next_id(), parse_submission_id(self.submission_id))
        return replace(rules, attachment=daemon.call(request, Attachment).attachment)


def read_template(path: str) -> Template:
    """Read a template from a file, or from stdin for `-`.

    Raises:
        InputUnreadable: it cannot be read.
        UsageError: it is not such a document.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            text = file.read()
    except OSError as error:
        raise InputUnreadable(f"{path} cannot be read: {error.strerror}.") from error
    try:
        document: Any = msgspec.json.decode(text)
        if isinstance(document, dict) and "error" in document and "submission_id" not in document:
            raise UsageError("--from-json: the document describes an error, not a submission.")
        return msgspec.convert(document, Template)
    except msgspec.MsgspecError as error:
        raise UsageError(f"--from-json {path}: {error}.", hint="It takes what `opsq show ID --json` prints.") from error
