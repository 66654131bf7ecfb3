"""The verb token create: a new token for one client."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import refuse_address
from opsq.cli.output.installation_documents import NewTokenDocument
from opsq.daemon import tokens_file
from opsq.options.option import argument, as_option, option
from opsq.store.state_folder import make_state_dir
from opsq.wire.roles import ROLES, parse_roles


def create(
    caller: Caller,
    name: str = argument("NAME", "The name of the token in lists and in the audit."),
    role: str = option(
        "--role ROLE[,ROLE…]",
        "What the token permits: operator, producer, consumer, read-only.",
        default="producer,consumer",
    ),
) -> None:
    """Create a token and print it, only this once; a running daemon accepts it immediately."""
    refuse_address(caller.settings)
    roles = as_option("--role", role, parse_roles)
    make_state_dir(caller.settings.state_dir, is_shared=caller.settings.is_shared)
    token = tokens_file.create(caller.settings.tokens_file, name, roles)
    caller.document(NewTokenDocument(name, [each for each in ROLES if each in roles], token))
    caller.lines([token])
