"""opsq release: chunks are given back at once, and no attempt is counted."""


def test_released_chunk_is_free_again_without_an_attempt(queue):
    queue.submit_lines(1)
    queue.ok("release", queue.reserve())
    assert queue.ok("reserve", "--json").json["chunks"][0]["attempt"] == 0


def test_all_that_a_consumer_holds_is_free_at_once(queue):
    queue.submit_lines(3)
    queue.ok("reserve", "-n", "3", "--lease", "4h")
    consumers = queue.ok("status", "--json").json["consumers"]
    (holder,) = [consumer["consumer"] for consumer in consumers if consumer["reserved"]]
    assert queue.ok("release", "--consumer", holder, "--json").json == {"count": 3}
    assert len(queue.ok("reserve", "-n", "9").lines) == 3


def test_second_release_is_exit_5(queue):
    queue.submit_lines(1)
    handle = queue.reserve()
    queue.ok("release", handle)
    assert queue("release", handle).status == 5


def test_neither_handles_nor_consumer_or_both_are_exit_2(queue):
    assert queue("release").status == 2
    assert queue("release", "1/0@1.0.1.1", "--consumer", "c").status == 2
