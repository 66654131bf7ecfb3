"""Chooses what runs a command for chunks: once per chunk, per record, or as a server in each slot.

This file must not start anything; each kind is loaded only when it is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsq.runner.feeding.invocation import Template
from opsq.runner.feeding.programs import Feeding, Programs, Setup
from opsq.runner.feeding.record_arguments import record_template
from opsq.runner.process.spawn import check_program


def make_programs(command: Sequence[str], feeding: Feeding, setup: Setup) -> Programs:
    """Make what runs `command` for chunks in the way that `feeding` says.

    Raises:
        UsageError: the command has placeholders that do not go with that way, or ways cannot be combined.
    """
    feeding.check()
    if feeding.by_records:
        from opsq.runner.feeding.per_record import PerRecord

        return PerRecord(command, feeding, setup)
    if feeding.server:
        from opsq.runner.feeding.server_pool import ServerPool

        return ServerPool(command, feeding, setup)
    from opsq.runner.feeding.per_chunk import PerChunk

    return PerChunk(command, feeding, setup)


def check_command(command: Sequence[str], feeding: Feeding) -> None:
    """Check a command before anything is submitted or reserved for it.

    Raises:
        UsageError: see `make_programs`.
        CommandNotFound, CommandNotExecutable: it cannot be run, as far as that can be seen.
    """
    check_template(command, feeding)
    check_program(command[0])


def check_template(command: Sequence[str], feeding: Feeding) -> None:
    """Check the placeholders of a command.

    Raises:
        UsageError: see `make_programs`.
    """
    feeding.check()
    if feeding.by_records:
        record_template(command, feeding)
    elif feeding.server:
        from opsq.runner.feeding.server_pool import check_server

        check_server(command)
    else:
        Template(command)
