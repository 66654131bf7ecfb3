"""Connects a verb to the daemon: the address and token that the settings name, one greeted connection.

It must stay cheap to import: the hot verbs use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from opsq.client.core.address import address_of, is_local, read_token
from opsq.client.sync.connection import Connection
from opsq.errors import InvalidStrategy, UsageError
from opsq.settings import Settings, load
from opsq.wire.messages import Claim

SETTING_OPTIONS = (
    "state_dir",
    "socket",
    "address",
    "token_file",
    "tls_ca_file",
    "tls_client_cert_file",
    "tls_client_key_file",
    "shard_by",
    "shards",
)
"""The options that are settings and that any verb may have."""


def settings_of(
    options: Mapping[str, object],
    by_flag: Iterable[str],
    more: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
) -> Settings:
    """The settings with the flags given on the command line itself; the settings read variables, and name them.

    Args:
        more: flags of the verb that are settings too.
        environ: the variables; None: those of this process.
        kept: see `opsq.settings.load`.

    Raises:
        UsageError: --socket and --address were both given, or a value or a file cannot be used.
    """
    flags = {name: options.get(name) for name in SETTING_OPTIONS if name in by_flag}
    if flags.get("socket") and flags.get("address"):
        raise UsageError("--socket and --address cannot be combined.")
    try:
        return load({**flags, **(more or {})}, environ, kept)
    except UsageError as error:
        if "`opsq config`" in error.hint:  # which needs the settings too
            error.hint = ""
        error.hint = f"{error.hint} opsq.toml(5) lists all settings.".lstrip()
        raise


def refuse_address(settings: Settings) -> None:
    """Refuse --address for a verb that acts on this machine."""
    if settings.address and settings.source("address") == "--address":
        raise UsageError(
            "This verb acts on the daemon of this machine and takes no --address.",
            hint="To start a daemon that listens on TCP: opsq start --listen HOST:PORT",
        )


def connect(settings: Settings, *, reconnect_s: float = 0.0, name: str = "", claim: Claim | None = None) -> Connection:
    """A greeted connection to the daemon that the settings name; `status` lists it as `name`."""
    address = address_of(settings)
    token = "" if is_local(address) else read_token(settings)
    return Connection.open(
        address, name=name or f"cli-{os.getpid()}", token=token, reconnect_s=reconnect_s, claim=claim
    )


def with_restart(error: InvalidStrategy, settings: Settings, strategy: str) -> InvalidStrategy:
    """Add that the daemon must be restarted, if the settings of this side name a strategy that it does not know."""
    if strategy.strip() in settings.strategies:
        where = settings.source(f"strategies.{strategy.strip()}")
        error.hint = f"{where} defines it, but the daemon was started before: `opsq restart` reads it."
    return error


def is_addressed(settings: Settings) -> bool:
    """Whether an address says where the daemon is: one was given, and no stronger --socket."""
    return bool(settings.address) and settings.source("socket") != "--socket"
