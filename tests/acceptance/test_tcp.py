"""The program over TCP: a token is needed, from a file or the environment, and a client token does not operate."""

import re
import socket
import subprocess
from pathlib import Path

import pytest
import trustme

from needs import need

MANUAL = Path(__file__).parents[2] / "man" / "opsq-security.7"


@pytest.fixture
def address(opsq):
    """Where a daemon listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    opsq.file("client", b"only-for-clients-0123456789abcdef\n")
    (opsq.folder / "client").chmod(0o600)
    opsq.ok("start", "--listen", f"127.0.0.1:{port}", "--client-token-file", str(opsq.folder / "client"))
    return f"127.0.0.1:{port}"


def test_token_from_a_file_or_the_environment_lets_in(opsq, address):
    token = opsq.state_dir / "token"
    elsewhere = {"OPSQ_STATE_DIR": str(opsq.folder / "elsewhere")}
    assert opsq("status", "--address", address, "--token-file", str(token), environ=elsewhere).status == 0
    assert (
        opsq("reserve", "--address", address, environ=elsewhere | {"OPSQ_TOKEN": token.read_text().strip()}).status == 3
    )
    assert opsq("status", environ=elsewhere | {"OPSQ_ADDRESS": address, "OPSQ_TOKEN_FILE": str(token)}).status == 0


def test_wrong_or_missing_token_is_told(opsq, address):
    ran = opsq(
        "status", "--address", address, "--token-file", opsq.file("wrong", b"guessed-0123456789abcdef0123456789")
    )
    assert ran.status == 7
    assert "guessed" not in ran.err + (opsq.state_dir / "opsq.log").read_text()
    missing = opsq("status", "--address", address, "--token-file", "/vanished")
    assert missing.status == 2
    assert "/vanished" in missing.err


def test_client_token_does_not_operate(opsq, address):
    as_client = ("--address", address, "--token-file", "client")
    assert opsq("list", *as_client).status == 0
    assert opsq("stop", *as_client).status == 7
    assert opsq("vacuum", *as_client).status == 7
    assert opsq("check", *as_client, "--json").json["error"]["code"] == "not_permitted"


def test_token_and_address_of_who_submitted_are_kept(opsq, address):
    as_client = ("--address", address, "--token-file", "client")
    submission = opsq.ok("submit", opsq.file("in", b"a\n"), *as_client).text
    [shown] = opsq.ok("list", "--json").json["submissions"]
    assert (shown["submitted_by"], shown["submitted_from"]) == ("token client", "127.0.0.1")
    fields = [line.split("\t") for line in opsq.ok("show", submission).lines]
    assert ["submitted by", "token client@127.0.0.1"] in fields


def test_wrong_address_is_exit_4_and_a_bad_one_exit_2(opsq, address):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        assert opsq("list", "--address", f"127.0.0.1:{port}", environ={"OPSQ_TOKEN": "x"}).status == 4
    assert opsq("list", "--address", "nowhere").status == 2


@pytest.mark.parametrize("tls", ["", "tls://"])
def test_name_that_no_host_can_have_is_told(opsq, tls):
    ran = opsq("list", "--address", f"{tls}a..b:7480", environ={"OPSQ_TOKEN": "x"})
    assert (ran.status, "the name of the host is not valid" in ran.err) == (4, True)
    for listener in ("start", "gateway"):
        ran = opsq(listener, "--listen", "a..b:7480")
        assert (ran.status, "Cannot listen on a..b:7480" in ran.err) == (2, True)


def test_stop_uses_the_token_that_was_given(opsq, address):
    """On the daemon's own machine too, where the operator's token lies in a file."""
    wrong = opsq("stop", "--address", address, environ={"OPSQ_TOKEN": "wrong-0123456789abcdef"})
    assert wrong.status == 7
    client = opsq("stop", "--address", address, environ={"OPSQ_TOKEN": "only-for-clients-0123456789abcdef"})
    assert client.status == 7
    opsq.ok("status")
    token = (opsq.state_dir / "token").read_text().strip()
    elsewhere = {"OPSQ_STATE_DIR": str(opsq.folder / "elsewhere"), "OPSQ_TOKEN": token}
    assert opsq("stop", "--address", address, environ=elsewhere).status == 0
    assert opsq("status").status == 4


def test_stop_of_an_address_where_nobody_listens_is_exit_4(opsq, address):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ran = opsq("stop", "--address", f"127.0.0.1:{nobody.getsockname()[1]}", environ={"OPSQ_TOKEN": "x" * 32})
    assert ran.status == 4
    opsq.ok("status")


def test_restart_takes_no_address(opsq, address):
    pid = opsq.ok("status", "--json").json["pid"]
    ran = opsq("restart", "--address", address)
    assert ran.status == 2
    assert "takes no --address" in ran.err
    assert opsq.ok("status", "--json").json["pid"] == pid


def test_every_verb_works_over_tls(opsq):
    """By an address with its CA, by an option, and by settings; without a CA that signed it, exit 7."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(opsq.folder / "ca.pem")
    opsq.file("cert.pem", ca.issue_cert("localhost").private_key_and_cert_chain_pem.bytes())
    (opsq.folder / "cert.pem").chmod(0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    opsq.ok("start", "--listen", f"127.0.0.1:{port}", "--tls-cert-file", "cert.pem")
    token = (opsq.state_dir / "token").read_text().strip()
    elsewhere = {"OPSQ_STATE_DIR": str(opsq.folder / "elsewhere"), "OPSQ_TOKEN": token}
    by_option = ("--address", f"tls://localhost:{port}", "--tls-ca-file", "ca.pem")
    number = opsq("submit", "-", *by_option, stdin=b"a\nb\n", environ=elsewhere).text
    by_settings = {"OPSQ_ADDRESS": f"tls://localhost:{port}", "OPSQ_TLS_CA_FILE": str(opsq.folder / "ca.pem")}
    consumed = opsq("consume", "--until-empty", "--", "tr", "a-z", "A-Z", environ=elsewhere | by_settings)
    assert consumed.status == 0, consumed.err
    by_address = ("--address", f"tls://localhost:{port}?ca={opsq.folder}/ca.pem")
    assert opsq("results", number, *by_address, environ=elsewhere).out == b"A\nB\n"
    untrusted = opsq("list", "--address", f"tls://localhost:{port}", environ=elsewhere)
    assert untrusted.status == 7
    assert "is not accepted" in untrusted.err
    plain = opsq("list", "--address", f"localhost:{port}", environ=elsewhere)
    assert plain.status == 2
    assert "speaks TLS only" in plain.err
    assert opsq("stop", *by_option, environ=elsewhere).status == 0
    assert opsq("status").status == 4


def test_commands_of_the_manual_serve_a_client_with_a_certificate(opsq):
    """opsq-security(7) from the CA to the submission, on a port of loopback."""
    need("openssl")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"localhost:{probe.getsockname()[1]}"
    blocks = re.findall(r"^\.EX\n(.*?)^\.EE", MANUAL.read_text(), re.DOTALL | re.MULTILINE)
    make, serve, submit, settings = (
        re.sub("0.0.0.0:7411|queue.example:7411", place, block.replace("\\-", "-").replace("\\e\n", "\\\n"))
        for block in blocks
    )
    make = make.replace("queue.example", "localhost")
    subprocess.run(["sh", "-ec", make], cwd=opsq.folder, check=True, capture_output=True)
    opsq.file("access.log", b"a\nb\n")
    assert opsq.shell(serve).status == 0
    submitted = opsq.shell(f"OPSQ_STATE_DIR={opsq.folder}/elsewhere; {submit}")
    assert submitted.status == 0, submitted.err
    assert opsq.ok("list").text.startswith(submitted.text)
    (opsq.folder / "config" / "opsq").mkdir(parents=True)
    opsq.file("config/opsq/opsq.toml", settings.replace("/etc/opsq", str(opsq.folder)).encode())
    by_settings = {"OPSQ_STATE_DIR": f"{opsq.folder}/elsewhere", "XDG_CONFIG_HOME": f"{opsq.folder}/config"}
    assert opsq("list", environ=by_settings).text == opsq.ok("list").text
