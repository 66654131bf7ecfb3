"""What the end of a program means for its chunk: by lists of exit statuses and signals, as people write them.

This file only judges; it must not give verdicts, nor know how a program was run.
"""

from __future__ import annotations

import signal
from typing import Literal, NamedTuple

from opsq.errors import UsageError

Verdict = Literal["complete", "retry", "bury"]

OTHER = "other"
"""In a list: every end but those that a list names, and but success."""

_STATUS_LIMIT = 255


class EndSet(NamedTuple):
    """Some of the ways in which a program can end."""

    statuses: frozenset[int] = frozenset()
    signals: frozenset[int] = frozenset()
    has_other: bool = False

    def has(self, exit_status: int | None, signal_number: int | None) -> bool:
        """Whether an end is named here."""
        return exit_status in self.statuses or signal_number in self.signals


class ExitPolicy(NamedTuple):
    """Which end means what. What no list names is tried again."""

    complete_on: EndSet = EndSet(frozenset({0}))
    retry_on: EndSet = EndSet()
    bury_on: EndSet = EndSet()

    def names(self, exit_status: int | None, signal_number: int | None) -> bool:
        """Whether a list names this end, so that it has no other meaning."""
        return any(ends.has(exit_status, signal_number) for ends in self)

    def of(self, exit_status: int | None, signal_number: int | None) -> Verdict:
        """What an end means."""
        if self.complete_on.has(exit_status, signal_number):
            return "complete"
        if self.bury_on.has(exit_status, signal_number):
            return "bury"
        return "bury" if self.bury_on.has_other and not self.retry_on.has(exit_status, signal_number) else "retry"


def parse_exit_policy(complete_on: str | None, retry_on: str | None, bury_on: str | None) -> ExitPolicy:
    """Read the three lists; without `complete_on` it is 0, unless another list has that.

    Raises:
        UsageError: something that is no status and no signal, or the same in two lists.
    """
    lists = {"--complete-on": _ends("--complete-on", complete_on), "--retry-on": _ends("--retry-on", retry_on)}
    lists["--bury-on"] = _ends("--bury-on", bury_on)
    if complete_on is None:
        lists["--complete-on"] = EndSet(frozenset({0}) - lists["--retry-on"].statuses - lists["--bury-on"].statuses)
    options = list(lists)
    for at, option in enumerate(options):
        for later in options[at + 1 :]:
            both = [str(status) for status in sorted(lists[option].statuses & lists[later].statuses)]
            both += [_signal_name(number) for number in sorted(lists[option].signals & lists[later].signals)]
            if both:
                raise UsageError(
                    f"{option} and {later} both name {both[0]}.", hint="An exit status or a signal has one meaning."
                )
    return ExitPolicy(*lists.values())


def _ends(option: str, text: str | None) -> EndSet:
    statuses: set[int] = set()
    signals: set[int] = set()
    has_other = False
    for word in (text or "").split(",") if text is not None else ():
        item = word.strip()
        if item == OTHER and option == "--bury-on":
            has_other = True
        elif item[:1].isalpha() and option != "--complete-on":
            signals.add(_signal_number(option, item))
        else:
            statuses |= _statuses(option, item)
    return EndSet(frozenset(statuses), frozenset(signals), has_other)


def _statuses(option: str, item: str) -> set[int]:
    first, dash, last = item.partition("-")
    words = [first, last] if dash else [first]
    if not all(word.isascii() and word.isdigit() and int(word) <= _STATUS_LIMIT for word in words):
        known = "a status 0 to 255 or a range such as 64-78"
        if option != "--complete-on":
            known += ", or a signal such as SIGSEGV"
        raise UsageError(f"{option}: {item!r} is not an exit status.", hint=f"Give {known}; commas between them.")
    if int(words[0]) > int(words[-1]):
        raise UsageError(f"{option}: the range {item} runs backwards.")
    return set(range(int(words[0]), int(words[-1]) + 1))


def _signal_number(option: str, item: str) -> int:
    name = item.upper()
    try:
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except KeyError:
        raise UsageError(f"{option}: there is no signal {item!r}.", hint="`kill -l` lists them.") from None


def _signal_name(number: int) -> str:
    return signal.Signals(number).name
