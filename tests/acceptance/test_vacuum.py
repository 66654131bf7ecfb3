"""opsq vacuum: gives free pages back."""


def test_vacuum_tells_how_much_was_given_back(queue):
    assert queue.ok("vacuum", "--json").json["bytes"] >= 0
    assert queue.ok("vacuum").out == b""
