"""The verb token list: the tokens with names, and what each permits."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.installation_documents import TokensDocument, TokenShape
from opsq.daemon import tokens_file


def list_(caller: Caller) -> None:
    """List tokens: name, roles, time of creation. The tokens themselves are not stored."""
    refuse_address(caller.settings)
    found = tokens_file.entries(caller.settings.tokens_file)
    shapes = [TokenShape.from_entry(entry) for entry in found]
    caller.document(TokensDocument(shapes))
    caller.table(
        ("token", "roles", caller.heading("made")),
        [(s.name, ",".join(s.roles), caller.instant(s.created_at * 1000)) for s in shapes],
    )
