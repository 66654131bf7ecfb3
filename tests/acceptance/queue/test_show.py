"""opsq queue show: what holds for a queue."""


def test_shows_each_field_on_a_line(opsq):
    opsq.ok("queue", "create", "mails", "--limit", "100")
    assert opsq.ok("queue", "show", "mails").lines == [
        "queue\tmails",
        "strategy\tOldestFirst",
        "lease\t30s",
        "attempts\t-",
        "back-off\t-",
        "expires\t-",
        "limit\t100",
    ]


def test_a_queue_that_was_not_created_has_the_defaults(opsq):
    assert opsq.ok("queue", "show", "other", "--json").json["limit"] is None
    assert opsq("queue", "show", "a b").status == 2
