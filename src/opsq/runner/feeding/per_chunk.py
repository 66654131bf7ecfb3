"""Runs a program once per chunk: the chunk is its stdin or a file, its stdout or another file is the result.

This file must not move bytes of running programs (process/ does).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from opsq.errors import OpsqError, WorkFailed
from opsq.runner.feeding.invocation import Template, value_texts
from opsq.runner.feeding.programs import Feeding, Programs, Setup
from opsq.runner.process.child import Child, Finished, Said
from opsq.runner.process.pipes import SHARED_MIN_BYTES, Range

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk


_LOOK_S = 0.5
"""How often the length of files is looked at that programs write by themselves."""


class _Files(NamedTuple):
    """The files of one chunk."""

    submission_id: int
    input: str = ""
    """A file of ours; empty: there is none, or it is the user's."""
    output: str = ""


class PerChunk(Programs):
    """One run per chunk.

    Args:
        command: may have all placeholders but `{}`.
    """

    def __init__(self, command: Sequence[str], feeding: Feeding, setup: Setup) -> None:
        self._template = Template(command)
        super().__init__(feeding, setup)
        self._files: dict[Child, _Files] = {}
        self._limit = setup.limit
        self._look_at_s = 0.0

    def start(self, chunk: Chunk, stdin: bytes | Range, said: Said | None = None) -> Child:
        names = self._template.names
        environment = self._environments.of(chunk)
        then = self._then_path()
        if then:
            environment["OPSQ_THEN"] = then
        values: dict[str, str] = {}
        files = _Files(chunk.submission_id)
        try:
            if names:
                values = value_texts(chunk, names, environment)
                if "{in}" in names:
                    place = chunk.file_path
                    if place is None:
                        files = files._replace(input=self._scratch.write("in", stdin))
                    values["{in}"] = files.input if place is None else os.fsdecode(place)
                    stdin = b""
                if "{out}" in names:
                    values["{out}"] = self._scratch.name("out")
                    files = files._replace(output=values["{out}"])
            argv = self._template.fill(values)
            child = self._supervisor.start(argv, stdin, environment, said=said, keeps_stdout=not files.output)
        except OpsqError as error:
            self._clear(files)
            if isinstance(error, WorkFailed):
                return self._supervisor.start_nothing(error)
            raise
        self._attachments.use(files.submission_id)
        self._files[child] = files
        self._then[child] = then
        return child

    def _poll(self, timeout_s: float | None) -> list[Finished]:
        if "{out}" in self._template.names and self._files:
            now = time.monotonic()
            if now >= self._look_at_s:
                self._look_at_s = now + _LOOK_S
                for child, files in self._files.items():
                    if (error := self._excess(files.output)) is not None:
                        self._supervisor.give_up(child, error)
            timeout_s = _LOOK_S if timeout_s is None else min(timeout_s, _LOOK_S)
        return super()._poll(timeout_s)

    def _excess(self, path: str) -> WorkFailed | None:
        """What is wrong if this file is longer than a result may be."""
        try:
            size_bytes = os.stat(path).st_size
        except OSError:  # it is not there yet, or never will be
            return None
        if size_bytes <= (self._limit.max_bytes or SHARED_MIN_BYTES):
            return None
        limit_bytes = self._limit.on_disk(path, size_bytes)
        return self._limit.exceeded(limit_bytes) if size_bytes > limit_bytes else None

    def _ended(self, finished: Finished) -> Finished:
        files = self._files.pop(finished.child, None)
        if files is None:
            return finished
        self._attachments.let_go(files.submission_id)
        try:
            # What a failed run has written is no result either, but its status may be one that counts as done.
            if files.output and finished.error is None and finished.exit_status is not None:
                if (excess := self._excess(files.output)) is not None:
                    return finished._replace(error=excess)
                finished = finished._replace(stdout=self._scratch.take(files.output))
        except WorkFailed as error:
            if finished.exit_status == 0:
                finished = finished._replace(error=error)
        finally:
            self._clear(files)
        return finished

    def _clear(self, files: _Files) -> None:
        for path in (files.input, files.output):
            if path:
                self._scratch.remove(path)
