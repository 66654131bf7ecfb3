"""The sentences for what the engine refuses, and how templates are filled: those of `findings`, too.

The engine gives a code and details, and only these two files word them; they must not decide anything, nor import what
they word. A template names details in braces; what follows the colon says how a detail is written.
"""

from __future__ import annotations

import contextlib
import string
import time
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any

from opsq.units import counted, format_number, format_roughly, format_span

Details = Mapping[str, Any]
"""What a sentence needs: numbers, names, and metadata pairs as one would type them."""

REFUSALS: dict[str, str] = {
    # Cause: what happened; then, in a second line, what to do next.
    "unknown_submission": "Submission {submission_id} is not known.\n`opsq list` shows the known ones.",
    "unknown_chunk": "Submission {submission_id} has {chunks:chunk}, counted from 0; there is no chunk {index}.",
    "not_finished": "Submission {submission_id} is {state}.\nCancel it first: `opsq cancel {submission_id}`.",
    "moved": (
        "Submission {submission_id} has moved to shard {shard}, at {address}.\n"
        "Ask there, with --address, or with --socket if that is a path."
    ),
    "moving": "Submission {submission_id} is being moved to another daemon.\nTry again in a moment.",
    "moving_here": (
        "Submission {submission_id}, which has one of these keys, is moving here, and is not handed out yet.\n"
        "Try again when `opsq drain --to` at the other daemon has ended; `opsq status` shows what is arriving."
    ),
    "not_held": "Submission {submission_id} is not held for a move by this connection.",
    "other_driver": "Another `opsq drain --to` has taken over.\nLet it finish, or stop it and run this one again.",
    "not_held_any_more": "What was held for this move is not held any more.\nRun `opsq drain --to` again.",
    "move_awaited": (
        "Submission {other_id} has arrived since, and must move together with one of these.\n"
        "Run `opsq drain --to` again."
    ),
    "move_outdated": (
        "A submission being moved was waiting for something that has since ended.\nRun `opsq drain --to` again."
    ),
    "clearing": "An earlier copy of submission {submission_id} is still being processed.\nTry again in a moment.",
    "out_of_step": "This is not the slice of submission {submission_id} that comes next.\nRun `opsq drain --to` again.",
    "bad_slice": (
        "What arrived for submission {submission_id} is malformed: {complaint}.\n"
        "Check the source daemon with `opsq check`, and run the same version of opsq on both sides."
    ),
    "arriving_already": (
        "Submission {submission_id} is already arriving there from another move.\n"
        "`opsq status` at the other daemon shows from where (`arriving_from`)."
    ),
    "arrived_before": "Submission {submission_id} is here already.",
    "moved_key_taken": (
        "Submission {submission_id} cannot move: submission {holder}, which has one of its keys, is there already.\n"
        "Let it be worked off where it is, or cancel one of the two."
    ),
    "drained": (
        "The daemon is being drained: it works off what is there, and takes no new submissions.\n"
        "Submit elsewhere, or end that: `opsq drain --undo`."
    ),
    "finalizing": "Submission {submission_id} is being finalized.\nRetry.",
    "stopping": "The daemon is stopping.\nTry again after its restart.",
    "role_needed": (
        "{request} needs the role {needed:or}; the token {token} has only {roles}.\n"
        "Use another token; `opsq token create` makes one on the daemon's machine."
    ),
    "too_many_parked": (
        "{limit} calls of this connection are already waiting.\nWait for fewer at once, or open more connections."
    ),
    "id_in_use": "Request {request_id} of this connection is still waiting.\nGive each request an id of its own.",
    "too_many_operations": "{limit:operation} of this connection are already in progress.\nWait until one has ended.",
    "too_many_unread": "More than {limit} of replies were not read.\nRead replies while sending requests.",
    "impossible_field": "{field} is not possible: {complaint}.",
    "wrong_request": "{request} cannot be used here.",
    "bad_results": "The results for block {block} of submission {submission_id} are malformed: {complaint}.",
    "follow_ups_of_many": (
        "Follow-ups belong to one chunk, and these to {chunks:chunk} of block {block} of submission {submission_id}.\n"
        "Complete it alone."
    ),
    "batch_undone": "This was rolled back with another request that could not be written.\nTry again.",
    "commit_failed": (
        "There is no space left for {path}.\n{removable} Nothing of this request was stored; try again later."
    ),
    "no_room_to_start": "There is no room for {path}, with {left}.\n{removable} Then try again.",
    "storage_full": (
        "The storage is full, so nothing is accepted or handed out.\n{removable} The daemon then continues by itself."
    ),
    # Shards.
    "shard_away": "Shard {shard} does not answer.\n{why}",
    "no_shard": "None of the shards answers: {addresses}.\nAre they started with --listen?",
    "shard_without_number": (
        "The daemon at {address} has no number, and is to be one of several.\n"
        "Start each with a number of its own: `opsq start --shard N`."
    ),
    "shards_alike": "The daemons at {addresses} are both shard {shard}.\nEach needs a number of its own.",
    "stores_differ": (
        "Shards {first} and {second} keep content in different stores.\nStart all of them with the same --store."
    ),
    "submission_elsewhere": (
        "Submission {submission_id} belongs to shard {shard}, and the addresses are those of shards {shards}.\n"
        "Add the address of that shard."
    ),
    "shard_not_known": "The shard of this chunk is not among the addresses.",
    "partly_stored": (
        "Of {count:submission}, {stored} are stored, and a shard has refused others: {why}\n"
        "Submit them again: those that are stored are not stored twice."
    ),
    "no_such_shards": "None of the chosen shards is among the addresses, which are those of shards {shards}.",
    "one_shard_only": (
        "{request:act} concerns one daemon, and the address names several.\nName one alone, with --address or --socket."
    ),
    "key_not_known": (
        "Shard {shard} does not answer, and may have a submission with this key already.\nTry again when it is back."
    ),
    "found_unknown": "Whether the key has made a submission is not known without {shards}.\nTry again when it is back.",
    "content_unknown": "The content of some submissions is not known without {shards}.\nTry again when it is back.",
    "soundness_unknown": (
        "{shards} did not answer, and was not checked. No problems were found at the others.\n"
        "Check it when it is back: `opsq check`."
    ),
    "schedule_not_known": (
        "Shard {shard} does not answer, and may have the schedule {name}.\nTry again when it is back."
    ),
    "pair_over_shards": (
        "A submission cannot wait for a pair here: those that have it may be on any shard.\n"
        "Name the submissions that it waits for by their ids."
    ),
    "dependencies_apart": (
        "A submission cannot wait for others on several shards ({shards}).\nSubmit them with the same --shard-by value."
    ),
    "dependency_elsewhere": "A submission to wait for is on shard {shard}, which is not among the addresses.",
    # Schedules.
    "unknown_schedule": "There is no schedule {name}.\n`opsq schedule list` lists them.",
    "schedule_exists": "There is a schedule {name} already.\n`opsq schedule edit {name}` changes it.",
    "schedule_changed": "Somebody else has just changed the schedule {name}; this change was not made.\nTry again.",
    "bad_schedule": (
        "{when!r} is not a schedule: {why}.\n"
        "Write five fields, as in '30 2 * * *', a name such as @daily, or 'every 15m'."
    ),
    "never_planned": "{when!r} never matches a date.\nCheck its day and month.",
    "unknown_zone": "There is no time zone {zone!r}.\nUse a name such as Europe/Amsterdam.",
    "template_of_one": (
        "Schedule {name} makes many submissions, which cannot share a key, a start, an end or what they wait for.\n"
        "Leave these out; `--expires` takes a duration."
    ),
    "empty_schedule": "Schedule {name} would end before it begins.\nGive an --until later than --from.",
    "catch_up_without": (
        "Schedule {name} catches up on nothing, so there is nothing to bound.\n"
        "Leave out the bound, or catch up on the last or on all."
    ),
    "long_backfill": "That is more than {limit:planned instant}.\nBackfill a shorter period, then the next.",
    # What a submission may be.
    "no_replica": (
        "This queue has no replica, so nothing can be acknowledged as replicated.\n"
        "Start its daemon with --replicate-to, or submit without --ack."
    ),
    "built_in_key": "The metadata key {key!r} is built in.\nChoose another name for the key.",
    "weight_without_pair": "A weight for {key!r} needs that key in the metadata.",
    "weight_out_of_range": "A weight of {weight:short} is not possible: it must be {min:short} to {max:short}.",
    "too_many_pairs": "{count} metadata pairs are more than the {limit} that a submission may have.",
    "delay_and_start": "A submission has either a delay or a start time, not both.",
    "until_start_without_key": "How long to hold a unique key was given, but no unique key.",
    "keep_without_key": "How long to keep an idempotency key was given, but no idempotency key.",
    "keep_too_long": (
        "An idempotency key cannot be kept for {keep_s:span}: submissions are removed {known_s:span} after their end.\n"
        "Keep it for less, or set finished_days to more."
    ),
    "two_expiries": "A submission has either a time to live or an expiry time, not both.",
    "bad_dependency": "A submission waits for another one, or for a pair: name one of the two.",
    "waits_for_itself": (
        "The submission would wait for itself: what it waits for waits for a pair that it has.\n"
        "Leave out that pair, or the dependency."
    ),
    "waits_for_too_many": (
        "The submission waits for more than {limit} others, so it cannot be made sure that none of them waits for it.\n"
        "Leave out its pairs that are waited for, or wait for one that waits for the others."
    ),
    "long_content": "The content description has {size_bytes:byte}; the limit is {limit_bytes}.",
    "long_attachment": (
        "The attachment has {size_bytes:byte}; the limit is {limit_bytes}.\nAttach a path or URL instead."
    ),
    "long_title": "The title has {size_bytes:byte}; the limit is {limit_bytes}.\nShorten it; metadata can say more.",
    "title_character": "A title cannot have the character {character}.\nWrite it on one line, as plain text.",
    "withdrawn": "The request {key} was withdrawn, so it makes no submission.\nSubmit again, with a new request key.",
    "other_content": (
        "The request key {key} belongs to submission {submission_id}, which has other content.\n"
        "`opsq show {submission_id}` shows it; other content needs a new request key."
    ),
    "awaited": (
        "Submission {submission_id} cannot be removed: submission {waiting_id} waits for it.\n"
        "`opsq explain {waiting_id}` says how; cancel that one, or wait until it no longer waits."
    ),
    "one_key_needed": "Find needs either a request key or an idempotency key.",
    # Room.
    "over_backlog": (
        "{chunks:chunk} are more than the {limit} that may be unfinished at once.\n"
        "Submit them in parts, or raise the daemon's setting max_backlog_chunks."
    ),
    "backlog": (
        "There is no room for {chunks:more chunk}: {unfinished} are unfinished, and {limit} may be.\n"
        "Wait until chunks are completed, or raise the daemon's setting max_backlog_chunks."
    ),
    "queue_for_room": (
        "Already waiting for room: {waiting:submission}.\n"
        "Wait until they have found room, or raise the daemon's setting max_backlog_chunks."
    ),
    "disk": (
        "There is no room on the disk: {folder} has {free_bytes:byte} left; {floor_bytes} must stay free.\n"
        "{removable} Then try again, or lower the daemon's setting min_free_bytes."
    ),
    "disk_for_content": (
        "There is no room on the disk: {folder} has {free_bytes:byte} left, and {wanted_bytes} are to be written; "
        "{floor_bytes} must stay free.\n"
        "{removable} Then try again, or lower the daemon's setting min_free_bytes."
    ),
    # Rules, lists and the history.
    "operator_pause": "An operator ({by:name}) paused this.\n`opsq resume --operator` ends the pause.",
    "empty_limit": "A limit needs a concurrency or a rate.",
    "burst_without_rate": "A burst needs a rate.",
    "limit_of_one_submission": "The key submission takes no value in a limit: it applies to each submission.",
    "unknown_limit": "There is no such limit.\n`opsq limits` lists them.",
    "unknown_event": "{name!r} is not an event.\nEvents are {names}.",
    "unknown_state": "{name!r} is not a state of a submission.\nStates are {names}.",
    "chunk_without_submission": "A chunk was named without its submission.\nName it as SUBMISSION/INDEX.",
    "nothing_to_prune": (
        "Neither an age nor a count was given.\nGive the age of the events to delete, or how many to keep."
    ),
    # Dead chunks.
    "indexes_without_submission": "Indexes were given without a submission.\nName the submission they belong to.",
    "not_dead": "Chunk {submission_id}/{index} is not dead.\n`opsq dead list` shows the dead chunks.",
    "key_taken": (
        "Submission {submission_id} cannot be revived: {holder} has its unique key {unique_key!r} now.\n"
        "Wait until {holder} has ended, or cancel it."
    ),
    "keys_taken": (
        "Submission {submission_id} cannot be revived: {holder} has its unique key {unique_key!r} now; nor can "
        "{others} more, for the same reason.\n"
        "Wait until those that have the keys have ended, or cancel them."
    ),
    # The state of a chunk whose reservation is not valid.
    "submission_ended": "Chunk {submission_id}/{index}: its submission {state:past}.",
    "submission_scheduled": "Chunk {submission_id}/{index}: its submission is scheduled.",
    "submission_blocked": "Chunk {submission_id}/{index}: its submission waits for another one.",
    "submission_finalizing": "Chunk {submission_id}/{index}: its submission is being finalized.",
    "chunk_finished": "Chunk {submission_id}/{index} is finished.",
    "chunk_waiting": (
        "Chunk {submission_id}/{index} is waiting and not reserved; if reservations keep expiring, increase "
        "--reservation or --lease."
    ),
    "chunk_delayed": "Chunk {submission_id}/{index} is waiting for a retry.",
    "chunk_reserved": "Chunk {submission_id}/{index} is reserved by {holders} under another reservation or token.",
}

_COUNTS = {"in_back_off": "in back-off"}


def refusal(cause: str, details: Details) -> tuple[str, str]:
    """What was refused and why, and what to do next; what another version sends is written as it came."""
    template = REFUSALS.get(cause)
    if template is not None:
        message, _, hint = template.partition("\n")
        if details.get("done"):
            message += " Already done: {done}."
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return fill(message, details), fill(hint, details)
    return f"{cause}: " + ", ".join(f"{name} {value}" for name, value in details.items()), ""


def fill(template: str, details: Details) -> str:
    """A template with its details.

    Args:
        details: may have `now` in milliseconds since 1970: instants are then written with their distance from it.

    Raises:
        KeyError, TypeError, ValueError: the details are not those of the template.
    """
    return _words.vformat(template, (), details)


class _Words(string.Formatter):
    """Fills templates; `{name:spec}` writes a detail in a special form, and a noun as spec counts it."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if field_name == "slots":
            return _slots(kwargs), field_name
        if field_name == "counts":
            return _counts(kwargs), field_name
        if field_name == "removable":
            return _removable(kwargs), field_name
        value = kwargs[field_name]
        return ((value, kwargs["now"]) if "now" in kwargs and field_name.endswith("_at") else value), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if not format_spec:
            return str(value)
        form = _FORMS.get(format_spec)
        return form(value) if form is not None else counted(value, format_spec)


def _slots(details: Details) -> str:
    """What of a limit or gate is taken."""
    if "bound" not in details:
        return "all that the strategy allows is taken"
    if "pair" in details:
        return f"{details['pair']} has {details['count']} of {counted(details['bound'], 'chunk')} reserved"
    return "{count} of its {bound} slots are taken by chunks reserved or in back-off".format_map(details)


def _removable(details: Details) -> str:
    """What would make room on a disk, with the command that does it and how much that is."""
    sentences = []
    if "finished" in details:
        states = "--state completed --state failed --state cancelled --state expired"
        names = details["finished"]
        command = f"opsq rm {names}" if names else f"opsq list {states} -n 100 | cut -f1 | xargs opsq rm"
        sentences.append(
            f"`{command}` frees about {format_roughly(details['finished_bytes'])} of finished submissions."
        )
    if "unfinished" in details:
        names = details["unfinished"]
        ids = "" if names else "ids=$(opsq list --state open -n 100 | cut -f1) && "
        command = f"{ids}opsq cancel {names or '$ids'} && opsq rm {names or '$ids'}"
        size = format_roughly(details["unfinished_bytes"])
        sentences.append(f"`{command}` frees about {size}, and abandons that work.")
    if "keep" in details:
        size = format_roughly(details["history_bytes"])
        sentences.append(f"`opsq history prune --keep {details['keep']}` frees about {size} of history.")
    if "old_logs" in details:
        command = f"cd {quote(str(details['folder']))} && rm {details['old_logs']}"
        sentences.append(f"`{command}` frees about {format_roughly(details['old_logs_bytes'])} of old logs and copies.")
    if "logs" in details:
        command = f"cd {quote(str(details['folder']))} && tee {details['logs']} < /dev/null"
        sentences.append(f"`{command}` empties logs of about {format_roughly(details['logs_bytes'])}.")
    if "returning_bytes" in details:
        size = format_roughly(details["returning_bytes"])
        sentences.append(f"The database is giving back about {size}, bit by bit.")
    if "others_bytes" in details:
        others, used = format_roughly(details["others_bytes"]), format_roughly(details["used_bytes"])
        sentences.append(f"Files that are not opsq's take about {others} of the {used} used there: delete some.")
    return " ".join(sentences) or "Free some space there."


def _counts(details: Details) -> str:
    """Chunks by where they stand."""
    counts = [(name, count) for name, count in details.items() if name not in {"total", "now"}]
    return ", ".join(f"{count} {_COUNTS.get(name, name)}" for name, count in counts)


def _instant(value: tuple[int, int]) -> str:
    """A wall instant, and how far it is from now."""
    wall, now = value
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall // 1000))
    away_s = (wall - now) / 1000
    if abs(away_s) < 1:
        return f"{text} (now)"
    return f"{text} (in {format_span(away_s)})" if away_s > 0 else f"{text} ({format_span(-away_s)} ago)"


_ACTS: dict[str, str] = {
    "Stop": "Stopping",
    "Drain": "Draining",
    "Backup": "A backup",
    "Events": "The list of events",
}
"""Requests that concern one daemon, as people call what they have asked for."""
_FORMS: dict[str, Callable[[Any], str]] = {
    "instant": _instant,
    "span": format_span,
    "left": lambda left_s: f"{format_span(left_s)} left" if left_s > 0 else "about to expire",
    "past": lambda state: "was cancelled" if state == "cancelled" else state,
    "short": format_number,
    "name": lambda name: name or "somebody",
    "pairs": lambda pairs: pairs or "everything",
    "selection": lambda pairs: pairs or "--all",
    "or": lambda roles: " or ".join(roles.rsplit(",", 1)).replace(",", ", "),
    "act": lambda request: _ACTS.get(request, "This"),
    "each": lambda bounded: bounded if "=" in bounded else f"each {bounded}",
}
_words = _Words()
