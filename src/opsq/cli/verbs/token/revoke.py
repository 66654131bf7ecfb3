"""The verb token revoke: a token lets nobody in any more."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.daemon import tokens_file
from opsq.options.option import argument


def revoke(caller: Caller, names: list[str] = argument("NAME...", "As `opsq token list` lists them.")) -> None:
    """Revoke tokens: a running daemon ends their connections within a second."""
    refuse_address(caller.settings)
    for name in names:
        tokens_file.revoke(caller.settings.tokens_file, name)
    caller.changed(len(names))
