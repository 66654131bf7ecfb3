"""opsq queue rm: queues have the defaults again."""


def test_removed_queue_has_the_defaults_again(opsq):
    opsq.ok("queue", "create", "mails", "--limit", "100")
    opsq.ok("queue", "create", "jobs")
    opsq.ok("queue", "rm", "mails")
    assert opsq.ok("queue", "show", "mails", "--json").json["limit"] is None
    assert [each["name"] for each in opsq.ok("queue", "list", "--json").json["queues"]] == ["jobs"]


def test_a_queue_that_is_not_there_is_named_and_nothing_is_removed(opsq):
    assert opsq("queue", "rm", "mails").status == 3
    opsq.ok("queue", "create", "mails")
    refused = opsq("queue", "rm", "mails", "jobs")
    assert refused.status == 3
    assert "There is no queue jobs." in refused.err
    assert len(opsq.ok("queue", "list", "--json").json["queues"]) == 1
