"""How a thread of `opsq run` ends the round, against the real engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from opsq.cli.caller import Caller
from opsq.cli.run.round_run import RoundRun, RunPlan
from opsq.cli.run.rounds import Round, new_key
from opsq.client.embedded import EmbeddedEngine
from opsq.client.sync.queue import Queue
from opsq.content.result_shaping import ResultShaping
from opsq.content.splitter import Splitting
from opsq.errors import Conflict, OpsqError, Unreachable, WorkFailed
from opsq.runner.pool_options import ConsumeOptions


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(runtime_dir, None, is_durable=False)
    yield engine
    engine.close()


@pytest.mark.parametrize("error", [Unreachable("The daemon has gone."), Conflict("Another round has taken it over.")])
def test_failure_while_the_rest_is_passed_over_after_a_dead_chunk_ends_the_round(
    engine: EmbeddedEngine, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, error: OpsqError
) -> None:
    plan = RunPlan(
        command=["cat"],
        options=ConsumeOptions(jobs=1),
        paths=[],
        splitting=Splitting(),
        output=str(runtime_dir / "out"),
        shaping=ResultShaping(),
        is_resumable=False,
        is_fresh=False,
        is_skipping=False,
        is_keeping=True,
        is_reporting=False,
    )

    def connect(**_: Any) -> Any:
        return engine.open_wire()

    def die(*_: object) -> NoReturn:
        raise WorkFailed("Chunk 7/0 has no result.")

    def fail() -> NoReturn:
        raise error

    with Queue(engine.open_wire) as queue:
        run = RoundRun(Caller({}, frozenset()), connect, Round(queue, new_key(), {}, is_resumable=False), plan)
        monkeypatch.setattr(run._delivery, "deliver", die)
        monkeypatch.setattr(run._delivery, "pass_over", fail)
        run._deliver()
        run._reader.close()
        run._handing.close()
    assert run._failure is error
    assert run._signals.count >= 2
