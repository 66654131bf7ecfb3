"""The verb gateway: serves HTTP in front of a daemon.

It must not import anything of `opsq[gateway]` before it is called.
"""

from __future__ import annotations

import sys

from opsq.cli.caller import Caller
from opsq.client.core.address import address_of, is_local, read_token
from opsq.errors import UsageError
from opsq.options.option import as_option, option
from opsq.options.values import counted_key, web_origin
from opsq.setting_kinds import ADDRESS, count

DEFAULT_LISTEN = "127.0.0.1:7480"


def gateway(
    caller: Caller,
    listen: str = option(
        "--listen HOST:PORT",
        "Serve on this address; port 0 takes a free one.",
        lambda origin, given: as_option(origin, given, ADDRESS.read),
        DEFAULT_LISTEN,
    ),
    uds: str = option("--uds PATH", "Serve on a Unix socket instead.", default=""),
    metrics_by: str | None = option(
        "--metrics-by KEY", "Metrics also count each value of this metadata key.", counted_key
    ),
    allow_origin: list[str] = option(
        "--allow-origin ORIGIN...",
        "Pages of this origin, such as https://example.org, may use the JSON API from a browser; repeatable.",
        web_origin,
    ),
    connection_limit: int = option(
        "--connection-limit N",
        "Hold so many connections at most.",
        lambda origin, given: as_option(origin, given, count(1, 1_000_000).read),
        4096,
    ),
    allow_actions: bool = option("--allow-actions", "Let operators pause, resume, requeue and cancel from the page."),
) -> None:
    """Serve HTTP in front of the daemon.

    Prints the URL when it is ready, ends at SIGTERM, and lets what is under way end.

    Beyond this machine each request needs a token of the daemon; see opsq-gateway(1).
    """
    try:
        from opsq.gateway.process import open_socket, serve
        from opsq.gateway.records.queue_defaults import path_in
    except ImportError as error:
        raise UsageError(
            f"The gateway needs {error.name}, which is not installed.", hint="Install it: pip install 'opsq[gateway]'"
        ) from error
    if uds and listen != DEFAULT_LISTEN:
        raise UsageError("--listen and --uds cannot be combined.")
    address = address_of(caller.settings)
    token = "" if is_local(address_of(caller.settings)) else read_token(caller.settings)
    listening = open_socket(listen, uds)
    url = f"http://{listening.name}" if listening.is_tcp else f"unix:{listening.name}"

    def ready() -> None:
        caller.lines([url])
        sys.stdout.flush()

    serve(
        listening,
        address,
        token,
        ready,
        queues_path=path_in(caller.settings.state_dir),
        metrics_by=metrics_by,
        allow_origins=allow_origin,
        connection_limit=connection_limit,
        allow_actions=allow_actions,
    )
