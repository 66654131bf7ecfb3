"""Templates of schedules: which can make one submission after the other, and what that of an instant is.

Must not decide when one is made, nor make it.
"""

from __future__ import annotations

import msgspec

from opsq.content import manifest
from opsq.errors import UsageError
from opsq.units import format_instant
from opsq.wire.messages import NewSubmission, Schedule

OWN_KEYS = ("schedule", "planned")
"""The keys of the pairs that each submission of a schedule gets."""


def check_template(schedule: Schedule) -> None:
    """`UsageError` if the template of a schedule names what is its own, or what only one submission can have."""
    template = schedule.template
    if own := sorted(set(OWN_KEYS) & set(template.metadata)):
        raise UsageError(cause="built_in_key", key=own[0])
    if (
        template.unique_key
        or template.idempotency_key
        or template.not_before_at
        or template.expires_at
        or template.after
    ):
        raise UsageError(cause="template_of_one", name=schedule.name)


def submission_of(schedule: Schedule, planned: int, key: bytes) -> NewSubmission:
    """The submission of an instant (ms since 1970), with this request key."""
    template, at = schedule.template, format_instant(planned)
    content, chunks_count = template.content, template.chunks_count
    if not chunks_count:
        chunk = msgspec.json.encode({"schedule": schedule.name, "at": at}) + b"\n"
        content, chunks_count = manifest.encode(manifest.Content(key.hex(), 1, len(chunk), inline=[chunk])), 1
    return msgspec.structs.replace(
        template,
        request_key=key,
        chunks_count=chunks_count,
        content=content,
        metadata=template.metadata | dict(zip(OWN_KEYS, (schedule.name, at), strict=True)),
    )
