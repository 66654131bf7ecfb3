"""Requests to all shards whose answers are one number, one text or one thing: changes, and questions about the whole.

It must not decide which shard a submission goes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from opsq.client.core.pending_requests import id_of
from opsq.client.shards.merging.gathering import Gathering, Q, R
from opsq.errors import Moved, Unreachable
from opsq.ids import shard_of
from opsq.wire import messages as m

DESCRIBED_BYTES = 4 << 20
"""An answer to Describe ends with the submission with which its content becomes longer."""

RuleChange = m.Pause | m.Resume | m.Limit | m.Unlimit | m.Weight
Summed = m.ReleaseConsumer | m.Prune | m.Vacuum | m.Requeue | m.Drop


class Rule(Gathering[RuleChange, m.Changed]):
    """A rule for all shards."""

    def answer(self, answers: dict[int, m.Changed]) -> m.Changed:
        """It has changed something, or is matched, if it has or is anywhere."""
        matched = [changed.is_matched for changed in answers.values() if changed.is_matched is not None]
        count = max((changed.count for changed in answers.values()), default=0)
        return m.Changed(self.request.id, count, any(matched) if matched else None)


class Sum(Gathering[Summed, m.Changed]):
    """A change of which each shard makes its part."""

    def answer(self, answers: dict[int, m.Changed]) -> m.Changed:
        """What all have changed."""
        return m.Changed(self.request.id, sum(changed.count for changed in answers.values()))


class DeadSelection(Sum):
    """Dead chunks of any submission, to be requeued or dropped."""

    def _error(self, error: m.ErrorReply, replies: Iterable[m.Reply]) -> m.ErrorReply:
        """With what has been done at any shard."""
        done = sum(
            reply.count if isinstance(reply, m.Changed) else int(reply.details.get("done", 0))
            for reply in replies
            if isinstance(reply, m.Changed | m.ErrorReply)
        )
        return replace(error, details={**error.details, "done": done})


class _Whole(Gathering[Q, R]):
    """A question whose answer may not be known without all shards."""

    def ask(self, shards: Sequence[int]) -> dict[int, m.Request]:
        """All of them."""
        self._shards = shards
        return super().ask(shards)

    def _unknown(self, cause: str, missing: Iterable[int]) -> m.ErrorReply:
        names = [*map(self.members.name, missing), *self.members.unreached]
        return m.ErrorReply.of(id_of(self.request), Unreachable(cause=cause, shards=", ".join(names)))


class Found(_Whole[m.Find, m.Found]):
    """Which submission a key has made, wherever it is."""

    def merged(self, replies: Mapping[int, m.Reply]) -> m.Reply:
        """A shard that says that another one has it now does not have it; the other one is asked, too."""
        nothing = m.Found(self.request.id, None, False)
        return super().merged({shard: nothing if self._is_elsewhere(one) else one for shard, one in replies.items()})

    def _is_elsewhere(self, reply: m.Reply) -> bool:
        return isinstance(reply, m.ErrorReply) and reply.code == Moved.code and reply.details["shard"] in self._shards

    def answer(self, answers: dict[int, m.Found]) -> m.Reply:
        """The first that has it; that nobody has is not known as long as some have not answered."""
        ids = [found.submission_id for found in answers.values() if found.submission_id is not None]
        missing = [shard for shard in self._shards if shard not in answers]
        if ids or not (missing or self.members.unreached):
            is_withdrawn = not ids and all(found.is_withdrawn for found in answers.values())
            return m.Found(self.request.id, ids[0] if ids else None, is_withdrawn)
        return self._unknown("found_unknown", missing)


class Described(_Whole[m.Describe, m.Described]):
    """The content of submissions; all are asked, as any may have moved."""

    def answer(self, answers: dict[int, m.Described]) -> m.Reply:
        """As many of the first as fit into an answer; what no shard has is not there only if its own says so, too."""
        known = {content.submission_id: content for found in answers.values() for content in found.submissions}
        missing = [shard for shard in self._shards if shard not in answers]
        silent = {shard_of(wanted) for wanted in self.request.submission_ids if wanted not in known} - answers.keys()
        if silent and (missing or self.members.unreached):
            return self._unknown("content_unknown", missing)
        described: list[m.SubmissionContent] = []
        size_bytes = 0
        for submission_id in self.request.submission_ids:
            if submission_id in known and size_bytes <= DESCRIBED_BYTES:
                described.append(known[submission_id])
                size_bytes += len(known[submission_id].content)
        return m.Described(self.request.id, described)


class Checked(_Whole[m.Check, m.Checked]):
    """Whether all databases are sound."""

    def answer(self, answers: dict[int, m.Checked]) -> m.Reply:
        """All problems, each with its shard; that there is none is not known as long as some have not answered."""
        problems = [
            f"{self.members.name(shard)}: {problem}"
            for shard, checked in answers.items()
            for problem in checked.problems
        ]
        missing = [shard for shard in self._shards if shard not in answers]
        if not problems and (missing or self.members.unreached):
            return self._unknown("soundness_unknown", missing)
        return m.Checked(self.request.id, problems)


class Explained(Gathering[m.Explain, m.Explained]):
    """How a strategy is served: each shard serves it alike, from what it has."""

    def answer(self, answers: dict[int, m.Explained]) -> m.Explained:
        """That of the first shard that would hand something out, or of the first."""
        shard = min(answers, key=lambda shard: not answers[shard].offers)
        chosen = answers[shard]
        note = f"This is what {self.members.name(shard)} does; each shard serves what it has."
        return replace(
            chosen, id=self.request.id, notes=[*chosen.notes, note] if len(self.members.addresses) > 1 else chosen.notes
        )
