"""opsq token revoke: a token lets nobody in any more, without a restart."""

import socket


def test_revoked_token_is_refused(opsq):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    opsq.ok("start", "--listen", address)
    token = opsq.ok("token", "create", "etl").text
    remote = {"OPSQ_ADDRESS": address, "OPSQ_TOKEN": token}
    assert opsq("list", environ=remote).status == 0
    assert opsq.ok("token", "revoke", "etl", "--json").json == {"count": 1}
    assert opsq("list", environ=remote).status == 7
    assert opsq.ok("token", "list").out == b""


def test_unknown_token_is_told(opsq):
    ran = opsq("token", "revoke", "nobody")
    assert ran.status == 3
    assert "There is no token nobody." in ran.err
