"""opsq token create: a token is printed once, and lets in over TCP what its roles permit."""

import socket


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_created_token_lets_in_by_its_role(opsq):
    address = f"127.0.0.1:{free_port()}"
    opsq.ok("start", "--listen", address)
    token = opsq.ok("token", "create", "etl", "--role", "producer").text
    remote = {"OPSQ_STATE_DIR": str(opsq.folder / "elsewhere"), "OPSQ_ADDRESS": address, "OPSQ_TOKEN": token}
    assert opsq("list", environ=remote).status == 0
    refused = opsq("reserve", environ=remote)
    assert refused.status == 7
    assert "Reserve needs the role operator or consumer; the token etl has only producer." in refused.err
    assert opsq("stop", environ=remote).status == 7
    opsq.ok("status")


def test_name_is_unique_and_the_role_is_one(opsq):
    document = opsq.ok("token", "create", "etl", "--json").json
    assert (document["name"], document["roles"], len(document["token"])) == ("etl", ["producer", "consumer"], 64)
    again = opsq("token", "create", "etl")
    assert (again.status, again.out) == (5, b"")
    assert "opsq token revoke etl" in again.err
    wrong = opsq("token", "create", "other", "--role", "root")
    assert wrong.status == 2
    assert "operator, producer, consumer, read-only" in wrong.err
    assert opsq("token", "create", "a b").status == 2


def test_tokens_are_made_where_the_daemon_runs(opsq):
    assert opsq("token", "create", "x", "--address", "127.0.0.1:1").status == 2
