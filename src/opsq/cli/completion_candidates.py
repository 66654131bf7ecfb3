"""What a completion script offers that is not the same everywhere: ids, keys, strategies, examples.

It must be quick and silent: a person who presses Tab wants neither a complaint nor a wait for a daemon that does not
answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opsq.cli import shipped_examples
from opsq.cli.daemon_address import connect, settings_of
from opsq.errors import OpsqError
from opsq.options.option import GLOBAL
from opsq.wire.messages import DaemonState, List, Listed, Status

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection
    from opsq.settings import Settings
    from opsq.wire.messages import SubmissionState

STATES: dict[str, list[str]] = {
    "ids": [],
    "open": ["blocked", "scheduled", "open"],
    "ended": ["completed", "failed", "cancelled", "expired"],
}
"""Kinds that are submission ids, and the states of those that are offered."""
KINDS = (*STATES, "keys", "consumers", "strategies", "explained", "examples")
"""All kinds; `explained` is what `opsq explain` takes: strategies and ids."""

OFFERED_COUNT = 100
"""Submissions that are looked at, the newest ones."""
_ANSWER_S = 2.0


def offer(kind: str, words: Sequence[str]) -> int:
    """Print what may stand at the cursor, one a line: the word, then perhaps a tab and what it is.

    Args:
        kind: one of `KINDS`.
        words: the command line so far; its global options say which daemon is meant.

    Returns:
        The exit status. Nothing is printed when the daemon cannot be asked.
    """
    given = _global_options(words)
    lines: list[str] = []
    status = 0
    try:
        if kind == "examples":
            texts = {name: shipped_examples.text_of(name) for name in shipped_examples.names()}
            lines += [f"{name}\t{shipped_examples.about(text)}" for name, text in texts.items()]
        settings = settings_of(given, given)
        if kind in {"strategies", "explained"}:
            lines += _strategies(settings)
        if kind not in {"strategies", "examples"}:
            with connect(settings) as daemon:
                lines += _known(daemon, kind)
    except OpsqError as error:
        status = error.exit_status
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if lines else status


def _strategies(settings: Settings) -> Iterable[str]:
    """Every strategy that there is a name for; one that takes something ends in its parenthesis."""
    from opsq.strategy.tree import NODES

    for name, node in NODES.items():
        needs_more = len(node.__struct_fields__) > len(node.__struct_defaults__)
        yield f"{name}{'(' if needs_more else ''}\t{_first_line(node.__doc__)}"
    for name, text in settings.strategies.items():
        yield f"{name}\t{text}"


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]


def _known(daemon: Connection, kind: str) -> Iterable[str]:
    """What the daemon knows of a kind."""
    if kind == "consumers":
        return _consumers(daemon)
    return _keys(daemon) if kind == "keys" else _ids(daemon, STATES.get(kind, []))


def _ids(daemon: Connection, states: list[str]) -> Iterable[str]:
    return [f"{state.submission_id}\t{_described(state)}" for state in _submissions(daemon, states)]


def _described(state: SubmissionState) -> str:
    pairs = "".join(f" {key}={value}" for key, value in state.metadata.items())
    shown = f"{state.state} {state.completed_count}/{state.chunks_count}{pairs}"
    return "".join(each if each.isprintable() else " " for each in shown)


def _keys(daemon: Connection) -> Iterable[str]:
    return sorted({key for state in _submissions(daemon, []) for key in state.metadata})


def _consumers(daemon: Connection) -> Iterable[str]:
    consumers = daemon.call(Status(daemon.next_id()), DaemonState, _ANSWER_S).consumers
    return [
        f"{consumer.consumer}\tholds {consumer.reserved_count}" for consumer in consumers if consumer.reserved_count
    ]


def _submissions(daemon: Connection, states: list[str]) -> Sequence[SubmissionState]:
    return daemon.call(List(daemon.next_id(), states, limit=OFFERED_COUNT), Listed, _ANSWER_S).submissions


def _global_options(words: Iterable[str]) -> dict[str, str]:
    """The global options with a value in a command line, by name; bash may have cut its words at `=` and `:`."""
    whole: list[str] = []
    is_open = False
    for word in words:
        if whole and (is_open or word in {"=", ":"}):
            whole[-1] += word
        else:
            whole.append(word)
        is_open = word in {"=", ":"}
    names = {flag: name for name, option in GLOBAL.items() if not option.is_flag for flag in option.flags}
    found: dict[str, str] = {}
    rest = iter(whole)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag in names:
            found[names[flag]] = value if equals else next(rest, "")
    return found
