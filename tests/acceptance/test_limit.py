"""opsq limit: how many chunks of a value are reserved at once, or start per unit of time."""


def test_no_more_chunks_than_the_limit_are_reserved_until_it_is_removed(queue):
    queue.submit_lines(5, "-m", "tenant=a")
    queue.ok("limit", "tenant=a", "-c", "2")
    assert len(queue.ok("reserve", "-n", "9").lines) == 2
    queue.ok("limit", "tenant=a", "--lift")
    assert len(queue.ok("reserve", "-n", "9").lines) == 3


def test_rate_lets_its_burst_start_at_once(queue):
    queue.submit_lines(5, "-m", "tenant=a")
    queue.ok("limit", "tenant", "--rate", "1/h", "--burst", "3")
    assert len(queue.ok("reserve", "-n", "9").lines) == 3


def test_limit_without_a_bound_is_refused(queue):
    assert queue("limit", "tenant").status == 2
    assert queue("limit", "tenant", "--burst", "2", "-c", "1").status == 2


def test_limit_that_does_not_exist_cannot_be_removed(queue):
    assert queue("limit", "tenant", "--lift").status == 3


def test_rate_below_one_in_thirty_days_is_refused(queue):
    queue.submit_lines(0, "-m", "tenant=a")
    queue.ok("limit", "tenant", "--rate", "1/30d")
    refused = queue("limit", "tenant", "--rate", "1/31d")
    assert refused.status == 2
    assert "between 1/30d" in refused.err
    assert queue("limit", "tenant", "--rate", "0.000000000000000001/s").status == 2
