"""The types that annotations of programs need beside those of `opsq` itself: answers, options and arguments.

    def report(state: opsq.types.SubmissionState) -> None: ...

This file only gathers them.
"""

from __future__ import annotations

from opsq.client.core.address import TlsAddress
from opsq.client.core.administration import Value
from opsq.client.core.chunk_base import ChunkBase
from opsq.client.core.chunk_view import ChunkView
from opsq.client.core.consume_options import AsyncRunOptions, ConsumerOptions, Mode, OnInterrupt, OnLost, RunOptions
from opsq.client.core.follow_ups import Follower
from opsq.client.core.held_block import Lost, Result
from opsq.client.core.maintenance import HistoryConditions
from opsq.client.core.new_submission import After, Moment, RoomWait, SubmissionOptions, SubmitOptions
from opsq.client.core.reservation_base import BlockChunks
from opsq.client.core.result_pages import OnClose
from opsq.client.core.schedules import ScheduleOptions
from opsq.client.sync.child_process import Program
from opsq.content.manifest import InputRange
from opsq.ids import Handle, SubmissionId
from opsq.outbox.rows import DbConnection
from opsq.traces import TraceContext
from opsq.wire.messages import (
    Counts,
    DaemonState,
    DeadChunk,
    Dependency,
    DependencyEdge,
    Event,
    EventRows,
    Explained,
    HistoryEvent,
    NewSubmission,
    RulesState,
    RunningChunks,
    Schedule,
    ScheduleState,
    SubmissionState,
    WorkExplained,
)

__all__ = [
    "After",
    "AsyncRunOptions",
    "BlockChunks",
    "ChunkBase",
    "ChunkView",
    "ConsumerOptions",
    "Counts",
    "DaemonState",
    "DbConnection",
    "DeadChunk",
    "Dependency",
    "DependencyEdge",
    "Event",
    "EventRows",
    "Explained",
    "Follower",
    "Handle",
    "HistoryConditions",
    "HistoryEvent",
    "InputRange",
    "Lost",
    "Mode",
    "Moment",
    "NewSubmission",
    "OnClose",
    "OnInterrupt",
    "OnLost",
    "Program",
    "Result",
    "RoomWait",
    "RulesState",
    "RunOptions",
    "RunningChunks",
    "Schedule",
    "ScheduleOptions",
    "ScheduleState",
    "SubmissionId",
    "SubmissionOptions",
    "SubmissionState",
    "SubmitOptions",
    "TlsAddress",
    "TraceContext",
    "Value",
    "WorkExplained",
]
