"""A queue with targets in opsq.toml."""

import pytest

CONFIG = """
[on]
paused = ["sh", "-c", "cat >> {folder}/got"]
resumed = ["sh", "-c", "echo no mail >&2; test -e {folder}/works && cat >> {folder}/got"]
"""


@pytest.fixture
def notified(queue):
    """A queue that says whom to notify: a program that works, and one that does as soon as there is `works`."""
    config = queue.folder / "config" / "opsq"
    config.mkdir(parents=True)
    (config / "opsq.toml").write_text(CONFIG.format(folder=queue.folder))
    queue.environ["XDG_CONFIG_HOME"] = str(queue.folder / "config")
    assert queue.ok("notify", "--once", "--json").json == {"delivered": 0, "waiting": 0, "dead": 0}
    return queue


@pytest.fixture
def one_dead(notified):
    """The same with a delivery that was given up: its id."""
    notified.ok("pause", "tenant=a", "--quiet")
    notified.ok("resume", "tenant=a", "--quiet")
    ran = notified("notify", "--once", "--attempts", "1", "--json")
    assert (ran.status, ran.json) == (0, {"delivered": 1, "waiting": 0, "dead": 1})
    [delivery] = notified.ok("notify", "dead", "--json").json["deliveries"]
    return delivery["delivery_id"]
