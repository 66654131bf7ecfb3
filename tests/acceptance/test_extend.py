"""opsq extend: moves a deadline, as long as the reservation is held."""


def test_extended_lease_outlives_its_first_length(queue):
    queue.submit_lines(1)
    handle = queue.reserve("--lease", "1")
    queue.ok("extend", handle, "--lease", "1h")
    assert queue("reserve", "--wait", "1.5").status == 3


def test_lost_reservation_is_exit_5(queue):
    queue.submit_lines(1)
    handle = queue.reserve()
    queue.ok("release", handle)
    ran = queue("extend", handle, "--json")
    assert (ran.status, ran.json["error"]["code"]) == (5, "reservation_lost")


def test_lease_of_no_length_is_exit_2(queue):
    assert queue("extend", "1/0@1.0.1.1", "--lease", "0").status == 2
