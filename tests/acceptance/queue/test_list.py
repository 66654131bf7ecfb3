"""opsq queue list: the queues that were created."""


def test_created_queues_are_listed_by_name(opsq):
    assert opsq.ok("queue").out == b""
    opsq.ok("queue", "create", "mails", "--limit", "100", "--backoff", "1s")
    opsq.ok("queue", "create", "jobs", "--expires", "4h", "--max-attempts", "3")
    assert opsq.ok("queue", "list").lines == [
        "jobs\tOldestFirst\t30s\t3\t-\t4h\t-",
        "mails\tOldestFirst\t30s\t-\t1s × 2 up to 5m\t-\t100",
    ]
    assert [each["name"] for each in opsq.ok("queue", "list", "--json").json["queues"]] == ["jobs", "mails"]


def test_a_damaged_file_is_named(opsq):
    opsq.ok("queue", "create", "mails")
    (opsq.state_dir / "queues.json").write_text('{"mails": {"limit": -1}}')
    refused = opsq("queue", "list")
    assert refused.status == 2
    assert "queues.json does not describe queues" in refused.err
