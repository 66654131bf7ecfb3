"""opsq notify drop: what was given up is forgotten."""


def test_dropped_delivery_is_gone(notified, one_dead):
    assert notified.ok("notify", "drop", one_dead, "--json").json == {"count": 1}
    assert notified.ok("notify", "dead").lines == []
    assert notified.ok("notify", "--once", "--json").json == {"delivered": 0, "waiting": 0, "dead": 0}
    assert notified("notify", "drop").status == 2
