"""Attachments as files: written once for all programs that work on a submission, and removed when none does any more.

This file must not ask the daemon itself.
"""

from __future__ import annotations

from collections.abc import Callable

from opsq.runner.feeding.scratch_folder import ScratchFolder

_UNUSED_COUNT = 16
"""How many files that no program uses are kept: the next chunk is often of the same submission."""


class Attachments:
    """Files of attachments.

    Args:
        scratch: where they are written.
        fetch: gives the attachment of a submission; None if it has none.
    """

    def __init__(self, scratch: ScratchFolder, fetch: Callable[[int], bytes | None]) -> None:
        self._scratch = scratch
        self._fetch = fetch
        self._paths: dict[int, str | None] = {}
        """By submission, the one that was used longest ago first."""
        self._users: dict[int, int] = {}

    def path(self, submission_id: int) -> str | None:
        """The path of the file, which is read-only; None: there is no attachment.

        Raises:
            StorageFull, Refused: it cannot be written.
            Exception: whatever `fetch` raises.
        """
        if submission_id in self._paths:
            path = self._paths.pop(submission_id)
        else:
            attachment = self._fetch(submission_id)
            path = None if attachment is None else self._scratch.write("attachment", attachment, 0o400)
        self._paths[submission_id] = path
        return path

    def use(self, submission_id: int) -> None:
        """A program uses it from now on."""
        self._users[submission_id] = self._users.get(submission_id, 0) + 1

    def let_go(self, submission_id: int) -> None:
        """A program uses it no more."""
        self._users[submission_id] -= 1
        if not self._users[submission_id]:
            del self._users[submission_id]
            while len(self._paths) - len(self._users) > _UNUSED_COUNT:
                oldest = next(one for one in self._paths if one not in self._users)
                path = self._paths.pop(oldest)
                if path is not None:
                    self._scratch.remove(path)
