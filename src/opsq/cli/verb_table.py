"""Which verbs there are, what help says of each, and the function of each.

It must not know what a verb does, nor import one that is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from opsq.options.option import option

HELP = """\
A durable batch-work queue: submit a large input as chunks, run any program on each, get the results in input order.

Every verb takes --json, which prints a JSON document on stdout, also on failure. Work is done at least once: a chunk
whose consumer is lost is handed out again; a completion that was acknowledged never is.
"""

VERSION = option("--version", "Print the version and exit.")


class Place(NamedTuple):
    """Where `opsq --help` lists a verb, and how its help begins.

    The verb itself is the function of its name in the module of its name.
    """

    panel: str
    summary: str


_DAEMON, _PRODUCE, _CONSUME = "Daemon", "Producing", "Consuming"
_INSPECT, _ADMINISTER, _BEGIN = "Inspection", "Administration", "Getting started"

VERBS: dict[str, Place] = {
    "start": Place(_DAEMON, "Start the daemon and return when it is ready."),
    "stop": Place(_DAEMON, "Stop the daemon."),
    "restart": Place(_DAEMON, "Stop the daemon, if one runs, and start it again."),
    "drain": Place(_DAEMON, "Take no new submissions, and work off what is there."),
    "status": Place(_DAEMON, "Show what the daemon is doing."),
    "top": Place(_DAEMON, "Follow the queue on one screen."),
    "metrics": Place(_DAEMON, "Print metrics of the daemon once, as Prometheus reads them."),
    "gateway": Place(_DAEMON, "Serve HTTP in front of the daemon."),
    "submit": Place(_PRODUCE, "Submit files or stdin as chunks."),
    "wait": Place(_PRODUCE, "Wait until submissions have ended."),
    "results": Place(_PRODUCE, "Write the results of a submission to stdout, in chunk order."),
    "show": Place(_PRODUCE, "Show one submission."),
    "list": Place(_PRODUCE, "List submissions, newest first."),
    "cancel": Place(_PRODUCE, "Cancel submissions."),
    "rm": Place(_PRODUCE, "Remove finished submissions, with their results and content."),
    "outbox": Place(_PRODUCE, "Print the tables of an outbox, through which work commits with your own transactions."),
    "relay": Place(_PRODUCE, "Hand the rows of an outbox over to the daemon."),
    "dead": Place(_PRODUCE, "List dead chunks, show everything about one, give them new attempts, or give up on them."),
    "run": Place(
        _CONSUME, "Run a program on each chunk of the inputs, and write the results to stdout in input order."
    ),
    "consume": Place(_CONSUME, "Run a program for each chunk."),
    "reserve": Place(_CONSUME, "Reserve chunks as leases."),
    "read": Place(_CONSUME, "Write the bytes of a reserved chunk to stdout."),
    "complete": Place(_CONSUME, "Complete reserved chunks."),
    "fail": Place(_CONSUME, "Report failed attempts."),
    "release": Place(_CONSUME, "Release reserved chunks without counting an attempt."),
    "extend": Place(_CONSUME, "Move the deadline of reserved chunks to a full lease from now."),
    "spark": Place(_CONSUME, "Move data with PySpark, and process chunks on its executors."),
    "history": Place(_INSPECT, "List the history of chunks, export it to files for other programs, or delete it."),
    "events": Place(_INSPECT, "Print what has happened, oldest first."),
    "notify": Place(
        _INSPECT, "Run programs and call webhooks for events; list, retry or drop deliveries that were given up."
    ),
    "explain": Place(_INSPECT, "Show how a strategy is served."),
    "pause": Place(_ADMINISTER, "Stop handing out some submissions until they are resumed."),
    "resume": Place(_ADMINISTER, "End a pause, named by the same pairs."),
    "limit": Place(_ADMINISTER, "Limit concurrent chunks per value, or how many start per unit of time."),
    "limits": Place(_ADMINISTER, "List pauses, limits and weights."),
    "weight": Place(_ADMINISTER, "Set the weight in Fair of a value of a key."),
    "audit": Place(_ADMINISTER, "List administrative acts, newest first."),
    "schedule": Place(_PRODUCE, "List, add, edit, show, pause, resume, trigger, backfill or remove schedules."),
    "queue": Place(_ADMINISTER, "List, create, show or remove the queues of records that a gateway serves."),
    "token": Place(_ADMINISTER, "List, create or revoke the tokens of TCP clients."),
    "config": Place(_ADMINISTER, "Print every setting."),
    "doctor": Place(_ADMINISTER, "Look for problems on this machine, and say what to do about each."),
    "check": Place(_ADMINISTER, "Check the database and its invariants, also while no daemon runs."),
    "backup": Place(_ADMINISTER, "Copy the database to a file, also while work continues."),
    "restore": Place(_ADMINISTER, "Bring a replicated queue back on this machine, when its own is lost."),
    "vacuum": Place(_ADMINISTER, "Return unused pages of the database to the file system."),
    "demo": Place(_BEGIN, "Run a demonstration."),
    "examples": Place(_BEGIN, "List the examples, print one, or copy some to a folder."),
    "completion": Place(_BEGIN, "Print the completion script for a shell."),
}

GROUPS: dict[str, tuple[str, ...]] = {
    "dead": ("list", "show", "requeue", "drop"),
    "history": ("list", "export", "prune"),
    "schedule": ("list", "add", "edit", "show", "pause", "resume", "trigger", "backfill", "rm"),
    "notify": ("run", "dead", "retry", "drop"),
    "queue": ("list", "create", "show", "rm"),
    "outbox": ("ddl",),
    "token": ("list", "create", "revoke"),
    "spark": ("doctor", "submit", "consume", "results", "run", "report"),
}
"""Verbs that have verbs of their own; the first is meant when none is given."""

HOT_VERBS = frozenset({"reserve", "read", "complete", "fail", "release", "extend"})
"""Those that shell loops call for every chunk: they import nothing slow, and make no garbage worth collecting."""

OPTIONAL_VALUES = {"--wait-for-room": "forever", "--pause-on-failure": "yes"}
"""Options whose value may be left out, and what is meant then; a value stands behind `=`."""

OTHERS_SAY = {
    "ack": "complete",
    "add": "submit",
    "ctl": "status",
    "del": "rm",
    "delete": "rm",
    "done": "complete",
    "enqueue": "submit",
    "get": "reserve",
    "help": "--help",
    "info": "show",
    "kill": "cancel",
    "ls": "list",
    "nack": "fail",
    "output": "results",
    "pop": "reserve",
    "ps": "top",
    "push": "submit",
    "put": "submit",
    "remove": "rm",
    "retry": "dead requeue",
    "stats": "status",
    "touch": "extend",
    "version": "--version",
    "work": "consume",
    "worker": "consume",
}
"""What other tools call our verbs."""


def function_of(name: str) -> Callable[..., None]:
    """The function of a verb: in the module of its name, in the package of its group if it has one."""
    module = import_module(f"opsq.cli.verbs.{name.replace(' ', '.')}")
    part = name.rpartition(" ")[2]
    found: Callable[..., None] = getattr(module, "list_" if part == "list" else part)  # not to hide the type
    return found
