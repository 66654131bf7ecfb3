"""Shows what would be run for the chunks that come first, word for word, and runs nothing.

The chunks are reserved for a moment and given back, no attempt counted. This file must not start programs or make
files.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from opsq.client.sync.consumer import Consumer
from opsq.errors import WorkFailed
from opsq.ids import SubmissionId
from opsq.runner.feeding.invocation import VARIABLE_OF, Template, input_variables, metadata_variables, value_texts
from opsq.runner.feeding.program_kinds import check_template
from opsq.runner.feeding.programs import Feeding
from opsq.runner.feeding.record_arguments import ChunkRecords, RecordRuns, record_template, room_bytes

if TYPE_CHECKING:
    from opsq.client.core.transport import Dial
    from opsq.client.sync.chunk import Chunk

_FILES = {"{in}": "{in}", "{out}": "{out}"}
"""What stands for a file that is made only when a program is run."""


_BATCH_COUNT = 1000


class Rehearsed(msgspec.Struct, frozen=True):
    """A program that would be run."""

    submission_id: SubmissionId
    index: int
    argv: list[bytes]

    @property
    def line(self) -> bytes:
        """The words as one line of shell that runs the same program."""
        return os.fsencode(shlex.join(map(os.fsdecode, self.argv)))


def rehearse(
    dial: Dial, command: Sequence[str], feeding: Feeding, strategy: str, chunks_count: int
) -> Iterator[Rehearsed]:
    """The programs for the chunks that would come first; what belongs to no chunk yet, such as `{out}`, is left.

    Raises:
        UsageError: the command has placeholders that do not go with that way, or ways cannot be combined.
        WorkFailed: a record can be no argument.
        OpsqError: the daemon cannot be reached, or refuses the strategy; a chunk cannot be read.
    """
    check_template(command, feeding)
    with Consumer(dial, strategy, batch=min(chunks_count, _BATCH_COUNT)) as consumer:
        for chunk in islice(consumer.chunks(until_idle=True, overlapping=True), min(chunks_count, sys.maxsize)):
            for argv in _argvs(chunk, command, feeding):
                yield Rehearsed(chunk.submission_id, chunk.index, [os.fsencode(word) for word in argv])


def _argvs(chunk: Chunk, command: Sequence[str], feeding: Feeding) -> Iterator[Sequence[str | bytes]]:
    if feeding.server:
        yield command
        return
    environment = dict(os.environ) | metadata_variables(chunk.metadata)
    given = {variable: name for name, variable in VARIABLE_OF.items()} | input_variables(chunk)
    values = value_texts(chunk, frozenset(VARIABLE_OF), given) | _FILES
    if not feeding.by_records:
        path = chunk.file_path
        if path is not None:
            values["{in}"] = os.fsdecode(path)
        yield Template(command).fill(values)
        return
    records = ChunkRecords(chunk.data, feeding.separator, len(chunk.header))
    runs = RecordRuns(
        records, record_template(command, feeding).cut(values), feeding.args_count, room_bytes(environment)
    )
    try:
        yield from runs
    except WorkFailed as error:
        raise WorkFailed(f"Chunk {chunk.submission_id}/{chunk.index}, {runs.where}: {error.message}.") from None
