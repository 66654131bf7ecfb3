"""The verb config: every setting, and where its value came from."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import urlsplit

from opsq.cli.caller import Caller
from opsq.cli.output.installation_documents import ConfigDocument, SettingShape
from opsq.settings import SETTINGS, STRATEGIES, Settings
from opsq.targets import ON, WEBHOOK


def config(caller: Caller) -> None:
    """Print every setting: its name, its value, and where the value came from."""
    texts = caller.settings.texts()
    rows = [(setting.name, texts[setting.name], caller.settings.source(setting.name)) for setting in SETTINGS]
    named = sorted(caller.settings.strategies.items())
    rows += [(f"{STRATEGIES}.{name}", text, caller.settings.source(f"{STRATEGIES}.{name}")) for name, text in named]
    rows += [(name, text, caller.settings.source(name)) for name, text in _targets(caller.settings)]
    shapes = [SettingShape(name, _value(caller, name, text), source) for name, text, source in rows]
    caller.document(ConfigDocument(shapes))
    caller.table(("setting", "value", "from"), rows)


def _targets(settings: Settings) -> Iterator[tuple[str, str]]:
    """Who is notified; of an address the host, since the rest of it may be a secret."""
    for kind, command in sorted(settings.on.items()):
        yield f"{ON}.{kind}", shlex.join(command)
    for webhook in sorted(settings.webhooks, key=lambda one: one.name):
        url = urlsplit(webhook.url)
        yield f"{WEBHOOK}.{webhook.name}", f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _value(caller: Caller, name: str, text: str) -> str | int | float | bool:
    """Numbers and truths as such, in bytes and seconds; a file mode stays octal text, as chmod has it."""
    value = getattr(caller.settings, name, None)
    return value if isinstance(value, bool | int | float) and name != "socket_mode" else text
