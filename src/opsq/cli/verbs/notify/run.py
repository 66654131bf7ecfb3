"""The verb notify run: a process that delivers events to the programs and webhooks of opsq.toml."""

from __future__ import annotations

import os
import sys

from opsq.cli.caller import Caller
from opsq.cli.event_feed import NOW, OLDEST, Feed, cursor, open_feed
from opsq.cli.notify_file import claimed, deliveries
from opsq.documents.deliveries import NotifyDocument
from opsq.documents.event_cursor import EventCursor
from opsq.errors import UsageError
from opsq.notify.notifier import PAGE_ROWS, Notifier, Tries
from opsq.notify.programs import Programs
from opsq.notify.target import Target
from opsq.notify.webhooks import WebhookTarget
from opsq.options.option import COUNT, duration, option
from opsq.printable import printable
from opsq.runner.stop_signals import StopSignals
from opsq.settings import Settings
from opsq.store.deliveries import Deliveries
from opsq.wire.messages import EVENT_KINDS, EventRows

_WAIT_S = 10.0


def run(
    caller: Caller,
    once: bool = option("--once", "End when all that has happened by now was tried; the rest waits for the next run."),
    since: EventCursor | None = option(
        "--since CURSOR|now|oldest", "Where to begin when it runs for the first time.", cursor, shown="now"
    ),
    jobs: int = option("-j, --jobs N", "Deliver up to this number at once to each target.", COUNT, 4),
    time_limit_s: float = option("--time-limit D", "Kill a program that takes longer.", duration, 60.0),
    attempts: int = option("--attempts N", "Give up after this number of attempts.", COUNT, 10),
    backoff_s: float = option(
        "--backoff D", "Delay after the first failed attempt; then five times as long each time.", duration, 5.0
    ),
) -> None:
    """Run the program that [on] in opsq.toml has for the kind of each event, and call the webhooks that want it.

    What fails is tried again, also by the next run, and then kept for `opsq notify retry`. Each event is delivered at
    least once, and what concerns one subject in its order. The verb runs until SIGTERM or Ctrl-C; a second one ends the
    wait for what is being delivered.
    """
    settings = caller.settings
    targets = _targets(settings, time_limit_s)
    with claimed(settings), deliveries(settings) as file, open_feed(caller, is_lasting=not once) as feed:
        notifier = _notifier(
            file, targets, feed, Tries(attempts, backoff_s), jobs, dead_days=settings.event_days, once=once
        )
        if notifier.cursor is None and since != OLDEST:
            notifier.begin(feed.newest() if since in {None, NOW} else since)
        with StopSignals(notifier.stop):
            try:
                notifier.run(once=once)
            finally:
                notifier.finish(settings.grace_s)
        document = NotifyDocument(notifier.delivered_count, notifier.waiting_count, file.dead_count())
    caller.document(document)
    caller.remark(f"{document.delivered} delivered, {document.waiting} waiting, {document.dead} dead.")


def _notifier(
    file: Deliveries, targets: list[Target], feed: Feed, tries: Tries, jobs: int, *, dead_days: float, once: bool
) -> Notifier:
    def ask(since: EventCursor | None) -> EventRows:
        return feed.page(since, PAGE_ROWS, 0.0 if once else _WAIT_S)

    def log(text: str) -> None:
        print(f"opsq: {printable(text)}", file=sys.stderr, flush=True)

    return Notifier(file, targets, ask, jobs=jobs, tries=tries, on_failure=log, dead_days=dead_days)


def _targets(settings: Settings, limit_s: float) -> list[Target]:
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir}
    for name, kinds in [("[on]", settings.on), *((f"webhook {one.name}", one.events) for one in settings.webhooks)]:
        if unknown := sorted(set(kinds) - set(EVENT_KINDS)):
            raise UsageError(
                f"{name} in opsq.toml names {unknown[0]!r}, which is no kind of event.",
                hint=f"Kinds are {', '.join(EVENT_KINDS)}.",
            )
    found: list[Target] = [Programs(settings.on, limit_s, environ)] if settings.on else []
    found += [WebhookTarget(webhook) for webhook in settings.webhooks]
    if not found:
        raise UsageError(
            "opsq.toml names nobody to notify.",
            hint='Write [on] into it, and below it failed = ["mail", "-s", "failed", "ada"]; see opsq-notify(1).',
        )
    return found
