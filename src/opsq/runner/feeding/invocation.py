"""The words and variables of a program: its arguments, with placeholders filled in, and its environment.

This file makes words and nothing else; it must not start programs, and the files that its words name are made by
others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opsq.errors import UsageError, WorkFailed

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk
    from opsq.runner.feeding.attachments import Attachments

RECORD = "{}"
_NAMED = re.compile(r"\{(?:in|out|id|index|attempt|attachment|submission|input|offset)\}")
VARIABLE_OF = {"{attachment}": "OPSQ_ATTACHMENT", "{input}": "OPSQ_INPUT", "{offset}": "OPSQ_OFFSET"}
"""Placeholders for what a chunk may lack."""
_OF_CHUNK = {"OPSQ_SUBMISSION", "OPSQ_CHUNK", "OPSQ_ATTEMPT", "OPSQ_CONSUMER", "OPSQ_THEN", *VARIABLE_OF.values()}
_OF_METADATA = "OPSQ_META_"
_KEPT_COUNT = 64
"""How many submissions have their environment kept."""


class Template:
    """A command with placeholders in any of its words but the first.

    Args:
        command: its words. What stands in braces and is no placeholder stays as it is, as in `awk '{print}'`.
        takes_records: whether `{}` is a placeholder.

    Raises:
        UsageError: the name of the program is to be filled in.
    """

    def __init__(self, command: Sequence[str], *, takes_records: bool = False) -> None:
        self._command = list(command)
        self.names = frozenset(name for word in command for name in _NAMED.findall(word))
        """The placeholders that stand in it, `{}` left out."""
        if _NAMED.search(command[0]) or (takes_records and RECORD in command[0]):
            raise UsageError(
                f"The name of the program, {command[0]}, has a placeholder in it.", hint="Run a shell: sh -c '…'."
            )

    def fill(self, values: Mapping[str, str]) -> list[str]:
        """The words for one chunk.

        Args:
            values: what stands for each of `names`.
        """
        if not self.names:
            return self._command
        return [_NAMED.sub(lambda found: values[found.group()], word) for word in self._command]

    def cut(self, values: Mapping[str, str]) -> list[list[bytes]]:
        """The words for the records of one chunk, cut at `{}`, so that no record or path is searched for placeholders.

        Without any `{}` there is one more word, which is it.
        """
        cut = [
            [os.fsencode(_NAMED.sub(lambda found: values[found.group()], piece)) for piece in word.split(RECORD)]
            for word in self._command
        ]
        if all(len(pieces) == 1 for pieces in cut):
            cut.append([b"", b""])
        return cut


def value_texts(chunk: Chunk, names: frozenset[str], environment: Mapping[str, str]) -> dict[str, str]:
    """What stands for the placeholders that need no file of the chunk's own.

    Args:
        names: those that are wanted.
        environment: of the program.

    Raises:
        WorkFailed: there is nothing that could stand for one of them.
    """
    submission, index = str(chunk.submission_id), str(chunk.index)
    values = {
        "{id}": f"{submission}/{index}",
        "{submission}": submission,
        "{index}": index,
        "{attempt}": str(chunk.attempt),
    }
    for name in names & VARIABLE_OF.keys():
        value = environment.get(VARIABLE_OF[name])
        if value is None:
            raise WorkFailed(f"the command needs an {name}, and the submission has none")
        values[name] = value
    return values


def input_variables(chunk: Chunk) -> dict[str, str]:
    """The input of a chunk, as variables; none if its producer named no input."""
    input_range = chunk.input
    return {} if input_range is None else {"OPSQ_INPUT": input_range.name, "OPSQ_OFFSET": str(input_range.offset_bytes)}


class Environments:
    """Makes the environment of programs: ours, and variables about the chunk. The variables of a submission are kept.

    Args:
        consumer: its name, as `opsq status` shows it.
        attachments: their paths.
        is_clean: leave out all of ours but PATH.
    """

    def __init__(self, consumer: str, attachments: Attachments, *, is_clean: bool = False) -> None:
        # The variables of another consumer, of which we are a program, are not passed on.
        self.base = {
            key: value
            for key, value in os.environ.items()
            if (key == "PATH" or not is_clean) and key not in _OF_CHUNK and not key.startswith(_OF_METADATA)
        }
        self.base["OPSQ_CONSUMER"] = consumer.replace("\0", "")
        self._attachments = attachments
        self._kept: dict[int, dict[str, str]] = {}

    def of(self, chunk: Chunk) -> dict[str, str]:
        """The whole environment of a program that works on this chunk.

        Raises:
            NotFound: its submission was removed.
            ContentMissing: the table of its inputs is gone.
        """
        environment = self._of_submission(chunk).copy()
        environment["OPSQ_CHUNK"] = str(chunk.index)
        environment["OPSQ_ATTEMPT"] = str(chunk.attempt)
        environment.update(input_variables(chunk))
        trace = chunk.trace_context
        if trace is not None:
            environment.pop("TRACESTATE", None)
            environment.update(trace.variables)
        return environment

    def _of_submission(self, chunk: Chunk) -> dict[str, str]:
        submission_id = chunk.submission_id
        kept = self._kept.get(submission_id)
        if kept is None:
            kept = self.base | metadata_variables(chunk.metadata)
            kept["OPSQ_SUBMISSION"] = str(submission_id)
            if len(self._kept) >= _KEPT_COUNT:
                del self._kept[next(iter(self._kept))]
            self._kept[submission_id] = kept
        # The file may be written again each time: it is kept only while a program uses it.
        path = self._attachments.path(submission_id)
        if path is not None:
            kept["OPSQ_ATTACHMENT"] = path
        return kept


def metadata_variables(metadata: Mapping[str, int | str]) -> dict[str, str]:
    """Metadata as variables: the key in capitals, `_` for what is no letter or digit.

    Of keys that become one, the last by order holds.
    """
    return {
        _OF_METADATA + re.sub(r"[^A-Z0-9]", "_", key.upper()): str(value).replace("\0", "")
        for key, value in sorted(metadata.items())
    }
