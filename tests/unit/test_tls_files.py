"""Files of TLS: a certificate and its key are used; what cannot be is named, with the reason."""

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from opsq.errors import InputUnreadable, NotPermitted
from opsq.tls_files import identify, reading_ca


@pytest.fixture
def context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """A folder with a CA, a certificate and its key, another key, and the key with a passphrase."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    own, other = ca.issue_cert("localhost"), ca.issue_cert("localhost")
    own.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    other.private_key_pem.write_to_path(tmp_path / "other.pem")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    key = serialization.load_pem_private_key(own.private_key_pem.bytes(), None)
    protected = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"a passphrase"),
    )
    (tmp_path / "protected.pem").write_bytes(protected)
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    return tmp_path


@pytest.mark.parametrize(("cert", "key"), [("cert.pem", "key.pem"), ("both.pem", "")])
def test_certificate_with_its_key_is_used(context: ssl.SSLContext, pki: Path, cert: str, key: str):
    identify(context, str(pki / cert), key and str(pki / key), is_private=True)


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("cert.pem", "", r"/cert.pem does not contain a certificate and its key in PEM format\.\s.*tls_key_file"),
        ("cert.pem", "other.pem", r"cert.pem and .*other.pem are not .*: key values mismatch\."),
        ("cert.pem", "none.pem", r"Cannot read the TLS file .*/none.pem: No such file"),
        ("none.pem", "key.pem", r"Cannot read the TLS file .*/none.pem: No such file"),
        ("cert.pem", "protected.pem", r"The TLS key .*/protected.pem needs a passphrase\..*openssl pkey"),
    ],
)
def test_files_that_do_not_belong_together_are_named(
    context: ssl.SSLContext, pki: Path, cert: str, key: str, message: str
):
    with pytest.raises(InputUnreadable, match=message):
        identify(context, str(pki / cert), key and str(pki / key), is_private=True)


def test_key_that_others_can_read_is_refused_where_it_must_be_private(context: ssl.SSLContext, pki: Path):
    """The group may, as that of a service; a client's file is the client's own affair."""
    path = pki / "both.pem"
    path.chmod(0o640)
    identify(context, str(path), "", is_private=True)
    path.chmod(0o644)
    with pytest.raises(NotPermitted, match=r"Other users can read the TLS key .*both.pem \(mode 0644\)\..*chmod o="):
        identify(context, str(path), "", is_private=True)
    identify(context, str(path), "", is_private=False)


def test_ca_is_loaded_or_named(context: ssl.SSLContext, pki: Path):
    for name, message in (("key.pem", "contains no CA certificate in PEM format"), ("none.pem", "Cannot read the TLS")):
        with pytest.raises(InputUnreadable, match=message), reading_ca(str(pki / name)):
            context.load_verify_locations(str(pki / name))
    with reading_ca(str(pki / "ca.pem")):
        context.load_verify_locations(str(pki / "ca.pem"))
    assert context.get_ca_certs()
