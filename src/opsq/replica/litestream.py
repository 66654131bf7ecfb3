"""Litestream as a program: where it is, what it is told, and what it finds in its environment.

It must not run it while the daemon serves (`litestream_process` does). Credentials stay in the environment: none is on
a command line, in the configuration or in a log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsq.errors import CommandNotFound, OpsqError, StoreNotVisible, UsageError

_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_S3_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_TRUE = ("true", "1")
_RENAMED = {
    "AZURE_STORAGE_ACCOUNT_KEY": "LITESTREAM_AZURE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN": "LITESTREAM_AZURE_SAS_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT": "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT_PATH": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""Variables by which the content store is told what Litestream takes under another name."""
CHECKPOINT_PAGES = 1000
"""At this length of the log (4 MB, as the daemon has it by itself) Litestream copies it into the file."""


def find_litestream() -> str:
    """The path of the program.

    Raises:
        CommandNotFound: it is not installed.
    """
    beside = Path(sys.executable).with_name("litestream")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("litestream")
    if found is None:
        raise CommandNotFound(
            "Litestream, which copies the queue, is not installed.",
            hint="Install it with opsq: pip install 'opsq[replicate]'.",
        )
    return found


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of Litestream: that of this process, with what it calls by another name."""
    found = dict(environ)
    for ours, theirs in _RENAMED.items():
        if environ.get(ours):
            found.setdefault(theirs, environ[ours])
    if bundle := found.pop("AWS_CA_BUNDLE", ""):  # with it, Litestream 0.5 does not start
        found.setdefault("SSL_CERT_FILE", bundle)
    return found


def write_config(path: Path, database: str, url: str, *, meta_dir: str = "", socket: str = "") -> None:
    """Write the configuration of one database whose replica is at `url`; JSON is YAML, too.

    Args:
        meta_dir: where Litestream keeps what it has not uploaded yet.
        socket: by which it is controlled; empty: by none.

    Raises:
        UsageError: the URL is none of a store.
    """
    one: dict[str, Any] = {
        "path": database,
        "min-checkpoint-page-count": CHECKPOINT_PAGES,
        "replica": _replica(url, os.environ),
    }
    if meta_dir:
        one["meta-path"] = meta_dir
    config: dict[str, Any] = {"dbs": [one], "shutdown-sync-timeout": "10s", "logging": {"type": "json", "stderr": True}}
    if socket:
        config["socket"] = {"enabled": True, "path": socket, "permissions": 0o600}
    path.write_text(json.dumps(config))


def _replica(url: str, environ: Mapping[str, str]) -> dict[str, object]:
    """Where the replica is, in the words of Litestream."""
    found: dict[str, object]
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    path = path.strip("/")
    if scheme == "file":
        from urllib.parse import unquote

        return {"type": "file", "path": unquote(rest)}
    found = {"bucket": bucket, "path": path}
    if scheme == "s3":
        return {"type": "s3", **found, **_service(environ)}
    if scheme == "gs":
        return {"type": "gs", **found}
    if scheme == "az":
        found["account-name"] = environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        if environ.get("AZURE_STORAGE_ENDPOINT"):
            found["endpoint"] = environ["AZURE_STORAGE_ENDPOINT"]
        return {"type": "abs", **found}
    raise UsageError(f"{url!r} cannot hold a replica: use an s3://, gs://, az:// or file:// URL.")


def _service(environ: Mapping[str, str]) -> dict[str, object]:
    """Endpoint and region of an S3 service, as the content store takes them."""
    endpoint = next((environ[name] for name in _S3_ENDPOINTS if environ.get(name)), "")
    region = next((environ[name] for name in _S3_REGIONS if environ.get(name)), "")
    found: dict[str, object] = {"region": region} if region else {}
    if endpoint:
        is_virtual = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in _TRUE
        found |= {"endpoint": endpoint, "force-path-style": not is_virtual}
    return found


def restore_database(url: str, path: Path, config: Path) -> None:
    """Write the newest state of a replica to `path`, which does not exist.

    Args:
        config: a file that may be written, and is left there.

    Raises:
        OpsqError: it cannot be read; nothing is at `path`.
    """
    write_config(config, str(path), url)
    answer = _run(["restore", "-config", str(config), "-no-expand-env", "-o", str(path), str(path)])
    if answer.returncode:
        raise _failure(url, answer.stderr)


def newest_at(url: str, database: Path, config: Path) -> str:
    """When the newest change in a replica was copied, as the store says (ISO 8601); empty if it cannot be told."""
    write_config(config, str(database), url)
    answer = _run(["ltx", "-config", str(config), "-no-expand-env", "-level", "all", "-json", str(database)])
    if answer.returncode:
        return ""
    files = json.loads(answer.stdout)
    return str(max(files, key=lambda file: str(file["max_txid"]))["timestamp"]) if files else ""


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_litestream(), *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        env=environment(os.environ),
        check=False,
    )


def _failure(url: str, errors: str) -> OpsqError:
    """What Litestream said last."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return StoreNotVisible(
        f"Litestream cannot read the replica at {url}: {lines[-1] if lines else 'no reason given'}.",
        hint="Check the URL, the endpoint and the credentials.",
    )
