"""What the page lets an operator do: pause and resume, requeue, cancel, trigger. Each is one request to the daemon.

It must not check who asks: `door` does, and the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from opsq.client.core.administration import caller_name
from opsq.errors import UsageError
from opsq.gateway.page.views import metadata_of
from opsq.ids import parse_submission_id
from opsq.units import parse_count
from opsq.wire import messages as m

Form = Mapping[str, str]


class Action(NamedTuple):
    """A request that a form makes, and what is said when it has changed something; `{}` is how much."""

    request: Callable[[int, Form], m.Request]
    done: str
    reply: type[m.Changed] | type[m.Submitted] = m.Changed


def _pause(number: int, form: Form) -> m.Request:
    metadata = metadata_of(form.get("m", ""))
    if not metadata and not form.get("all"):
        raise UsageError("Nothing was named to pause.", hint="Write KEY=VALUE, or tick everything.")
    return m.Pause(number, metadata, False, caller_name())


def _resume(number: int, form: Form) -> m.Request:
    try:
        pairs = msgspec.json.decode(form.get("pairs", ""), type=dict[str, int | str])
    except msgspec.MsgspecError as error:
        raise UsageError("That is not a form of this page.") from error
    return m.Resume(number, pairs, form.get("operator") == "True")


def _requeue(number: int, form: Form) -> m.Request:
    given = form.get("index", "")
    index = parse_count(given)
    if given and index is None:
        raise UsageError("That is not a form of this page.")
    return m.Requeue(number, parse_submission_id(form.get("id", "")), None if index is None else [index])


def _cancel(number: int, form: Form) -> m.Request:
    return m.Cancel(number, parse_submission_id(form.get("id", "")), form.get("reason", ""))


def _pause_schedule(number: int, form: Form) -> m.Request:
    return m.PauseSchedule(number, form.get("name", ""), caller_name())


def _resume_schedule(number: int, form: Form) -> m.Request:
    return m.ResumeSchedule(number, form.get("name", ""))


def _trigger_schedule(number: int, form: Form) -> m.Request:
    return m.TriggerSchedule(number, form.get("name", ""))


ACTIONS = {
    "pause": Action(_pause, "It is paused."),
    "resume": Action(_resume, "It is resumed."),
    "requeue": Action(_requeue, "Dead chunks with new attempts: {}."),
    "cancel": Action(_cancel, "It is cancelled."),
    "pause-schedule": Action(_pause_schedule, "The schedule is paused."),
    "resume-schedule": Action(_resume_schedule, "The schedule goes on."),
    "trigger-schedule": Action(_trigger_schedule, "The schedule has made a submission.", m.Submitted),
}


def said(done: str) -> str:
    """What the page says of what was done: `NAME:COUNT` of an address, in words; "" if that is nothing."""
    name, _, text = done.partition(":")
    count = parse_count(text)
    if name not in ACTIONS or count is None:
        return ""
    return ACTIONS[name].done.format(f"{count:,}") if count else "Nothing has changed: it was so already."
