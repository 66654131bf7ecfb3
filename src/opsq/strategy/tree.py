"""The nodes of a strategy, as plain immutable values; `str` gives the text form that travels and that `text.parse` reads back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strategy:
    """In which order a consumer wants chunks: base of all nodes."""

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class Random(Strategy):
    """A shuffled deck of all open submissions, cut at a random place; every submission has one turn a lap. The default."""

    __str__ = Strategy.__str__


@dataclass(frozen=True, slots=True)
class OldestFirst(Strategy):
    """All chunks of the oldest submission, then of the next. Finishes work in the order in which it came."""

    __str__ = Strategy.__str__


@dataclass(frozen=True, slots=True)
class NewestFirst(Strategy):
    """All chunks of the newest submission, then of the one before. While newer work keeps coming, older work starves."""

    __str__ = Strategy.__str__


NODES: dict[str, type[Strategy]] = {node.__name__: node for node in (Random, OldestFirst, NewestFirst)}
"""Every node by its name in the text form."""
