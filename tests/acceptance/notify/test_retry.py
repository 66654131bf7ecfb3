"""opsq notify retry: what was given up is delivered by the next run."""


def test_retried_delivery_is_made_by_the_next_run(notified, one_dead):
    (notified.folder / "works").touch()
    assert notified.ok("notify", "retry", one_dead, "999", "--json").json == {"count": 1}
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 1, "waiting": 0, "dead": 0}
    assert "resumed" in (notified.folder / "got").read_text()
    assert notified.ok("notify", "retry", "--all", "--json").json == {"count": 0}


def test_ids_or_all_must_be_given(queue):
    assert queue("notify", "retry").status == 2
    assert queue("notify", "retry", "1", "--all").status == 2
    assert queue("notify", "retry", "hey").status == 2
