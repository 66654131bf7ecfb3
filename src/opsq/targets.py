"""The tables of opsq.toml that say who is to be notified: `[on]`, a program by kind of event, and `[[webhook]]`.

Only files have them. It must not know which kinds of events there are, and must stay cheap to import.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from opsq.errors import UsageError

ON, WEBHOOK = "on", "webhook"

Command = Annotated[tuple[str, ...], Meta(min_length=1, max_length=1024)]


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receiver of events over HTTP. Its secret is given, or stands in a file."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    url: Annotated[str, Meta(pattern=r"^https?://[^\s/?#]", max_length=2048)]
    secret: str = ""
    secret_file: str = ""
    events: tuple[str, ...] = ()
    """Empty: all."""
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 15.0


class _Tables(msgspec.Struct):
    on: dict[str, Command] = {}
    webhook: tuple[Webhook, ...] = ()


def merged(
    files: list[tuple[str, dict[str, Any]]], sources: dict[str, str]
) -> tuple[dict[str, Command], tuple[Webhook, ...]]:
    """The programs by kind and the webhooks of all files, the stronger first; a name is looked up there first.

    Args:
        sources: gets the file of each.

    Raises:
        UsageError: what is wrong, and how it is written.
    """
    on: dict[str, Command] = {}
    webhooks: dict[str, Webhook] = {}
    for path, content in reversed(files):
        tables = _read(path, content)
        on |= tables.on
        webhooks |= {one.name: one for one in tables.webhook}
        sources |= dict.fromkeys((f"{ON}.{kind}" for kind in tables.on), path)
        sources |= dict.fromkeys((f"{WEBHOOK}.{one.name}" for one in tables.webhook), path)
    return on, tuple(webhooks.values())


def _read(path: str, content: dict[str, Any]) -> _Tables:
    given = {name: content[name] for name in (ON, WEBHOOK) if name in content}
    try:
        tables = msgspec.convert(given, _Tables)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}.", hint=_HINT) from error
    for one in tables.webhook:
        if bool(one.secret) == bool(one.secret_file):
            raise UsageError(f"{path}: webhook {one.name} needs a secret or a secret_file.", hint=_HINT)
    names = [one.name for one in tables.webhook]
    if again := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{path} has two webhooks called {again[0]}.", hint="Give each a name of its own.")
    return tables


_HINT = 'Write [on] and below it failed = ["mail", "-s", "failed", "ada"]; for [[webhook]] see opsq.toml(5).'
