"""Which submissions an arm takes, by what their metadata say.

This file must not know gates, nor what is free.
"""

from __future__ import annotations

from opsq.queue.live_submission import LiveSubmission
from opsq.strategy.arms import Arm, Filter


def passes(filters: tuple[Filter, ...], submission: LiveSubmission) -> bool:
    """Whether a submission passes all filters."""
    metadata = submission.metadata
    return all(entry.matches(submission.id, metadata) for entry in filters)


def takes(arm: Arm, submission: LiveSubmission) -> bool:
    """Whether an arm may ever serve a submission, gates aside."""
    return passes(arm.filters, submission) and (not arm.inner or any(takes(inner, submission) for inner in arm.inner))
