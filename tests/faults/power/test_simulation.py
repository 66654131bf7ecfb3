"""The engine under everything at once, by one seed: `OPSQ_TEST_STEPS` says how long, `OPSQ_TEST_SEED` which.

It is run in parts, each of a few queues that begin empty; each part has a seed of its own, so that one is replayed
alone. Whatever fails is shrunk by Hypothesis.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.power.dice import BACKEND, Dice
from faults.power.simulated import Simulation
from unit.queue.test_state_machine import small_bounds  # noqa: F401  # a fixture

RUNS, LENGTH = 10, 200
PART_STEPS = 1600
"""Of a part, on average: some of its runs end early."""
STEPS = int(os.environ.get("OPSQ_TEST_STEPS", "3200"))
SEED = os.environ.get("OPSQ_TEST_SEED", "1")
"""Of a run, `7`, or of one part of it, `7/12`."""
SHARE = 50
"""Parts that one test does."""


def parts() -> list[str]:
    """The seeds of the parts of the run."""
    if "/" in SEED:
        return [SEED]
    return [f"{SEED}/{number}" for number in range(max(STEPS // PART_STEPS, 1))]


def simulate(part: str, runs: int = RUNS) -> None:
    """Do one part of a run."""
    Dice.seed = part
    profile = settings(
        backend=BACKEND,
        max_examples=runs,
        stateful_step_count=LENGTH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, *thresholds[1:])  # engines come and go; to look through all that is loaded takes longer
    try:
        run_state_machine_as_test(Simulation, settings=profile)
    except BaseException as error:
        error.add_note(f"To replay: OPSQ_TEST_SEED={part} pytest {os.path.relpath(__file__)} -k always_holds")
        raise
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


ALL = parts()


@pytest.mark.parametrize("share", range(0, len(ALL), SHARE), ids=lambda number: ALL[number].replace("/", "-"))
def test_what_always_holds_does_whatever_happens(share: int, capsys: pytest.CaptureFixture[str]) -> None:
    began_s, steps_before = time.monotonic(), Simulation.tally["steps"]
    done = ALL[share : share + SHARE]
    for part in done:
        simulate(part)
    with capsys.disabled():
        steps_count, passed_s = Simulation.tally["steps"] - steps_before, time.monotonic() - began_s
        print(f"\n{done[0]} to {done[-1]}: {steps_count} steps in {passed_s:.0f} s; in all {dict(Simulation.tally)}")


def digest_of(part: str, hash_seed: str) -> str:
    """What a process of its own makes of a part."""
    notes = "from faults.power.simulated import PowerRig; PowerRig.digest = hashlib.blake2b()"
    does = f"t.simulate({part!r}, 3); print(PowerRig.digest.hexdigest())"
    code = f"import hashlib; from faults.power import test_simulation as t; {notes}; {does}"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": hash_seed}
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environ).stdout


def test_seed_says_every_reply_and_every_byte_of_the_disk() -> None:
    assert digest_of("1/0", "1") == digest_of("1/0", "2")
