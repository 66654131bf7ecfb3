"""opsq queue create: what holds for the records of a queue; nobody else needs to run."""

import pytest


def test_created_queue_has_what_was_given_and_the_defaults_for_the_rest(opsq):
    opsq.ok("queue", "create", "mails", "--limit", "100", "--backoff", "1s,3,1m", "--expires", "4h")
    assert opsq.ok("queue", "show", "mails", "--json").json == {
        "name": "mails",
        "strategy": "OldestFirst",
        "lease_s": 30.0,
        "max_attempts": None,
        "backoff": {"base_s": 1.0, "factor": 3.0, "max_s": 60.0},
        "expires_s": 14400.0,
        "limit": 100,
    }


def test_creating_again_replaces_everything(opsq):
    opsq.ok("queue", "create", "mails", "--limit", "100")
    opsq.ok("queue", "create", "mails", "--lease", "5", "-s", "NewestFirst", "--max-attempts", "2")
    shown = opsq.ok("queue", "show", "mails", "--json").json
    assert (shown["limit"], shown["lease_s"], shown["strategy"], shown["max_attempts"]) == (None, 5.0, "NewestFirst", 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a/b"], "cannot be the name of a queue"),
        (["1"], "cannot be the name of a queue"),
        (["a", "--lease", "0.01"], "the shortest lease is 0.1 seconds"),
        (["a", "-s", "Nonsense"], "is not a strategy"),
        (["a", "--limit", "0"], "--limit 0"),
        (["a", "--address", "127.0.0.1:1"], "--address"),
    ],
)
def test_what_no_queue_can_have_is_refused_and_nothing_is_created(opsq, words, said):
    refused = opsq("queue", "create", *words)
    assert refused.status == 2
    assert said in refused.err
    assert opsq.ok("queue", "list", "--json").json == {"queues": []}
