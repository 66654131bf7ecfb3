"""opsq demo: the main job on real input, and nothing left behind."""

import os

from waiting import wait_until


def demo_folders():
    """What demos have left in the folder for temporary files."""
    return {name for name in os.listdir("/tmp") if name.startswith("opsq-demo-")}


def test_demo_ends_well_says_so_in_a_log_and_leaves_nothing(opsq):
    before = demo_folders()
    ran = opsq.ok("demo")
    assert ran.lines[-1].endswith("nothing is left behind.")
    assert "A direct count without opsq agrees" in ran.text
    assert "OldestFirst" in ran.lines
    born = demo_folders() - before
    wait_until(lambda: not born & demo_folders(), 300, "this demo, and those that ran beside it, have left nothing")
    assert not opsq.state_dir.exists()


def test_demo_as_json_tells_what_was_done(opsq):
    document = opsq.ok("demo", "--json").json
    assert document["is_right"]
    assert document["chunks"] >= document["files"] > 100
