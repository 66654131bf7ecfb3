"""A row of the result table: what was measured, ours, the rival's, their ratio, and what it must reach.

It judges rows and writes values for people; it must not measure anything.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness.pairs import median, pairwise

Verdict = Literal["met", "short", "reported", "failed"]


class Ratio(enum.Enum):
    """Which way round a ratio is read. Rates and sizes that must be beaten read the way the promise is worded."""

    OURS_OVER_RIVAL = "ours/rival"
    RIVAL_OVER_OURS = "rival/ours"


@dataclass(frozen=True, slots=True)
class Must:
    """What a row must reach: inclusive bounds on our value or on the ratio; without bounds it is only reported."""

    text: str
    of: Literal["ours", "ratio"] = "ours"
    low: float | None = None
    high: float | None = None

    def verdict(self, ours: float | None, ratio: float | None) -> Verdict:
        """Judge a row by the value that this bound speaks about; a value that is absent has failed."""
        if self.low is None and self.high is None:
            return "reported"
        value = ratio if self.of == "ratio" else ours
        if value is None:
            return "failed"
        reached = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return "met" if reached else "short"


def ratio_at_least(bound: float) -> Must:
    """The ratio must be `bound` or more."""
    return Must(f"≥ {bound:g}×", "ratio", low=bound)


def ratio_at_most(bound: float) -> Must:
    """The ratio must be `bound` or less."""
    return Must(f"≤ {bound:g}×", "ratio", high=bound)


def at_least(bound: float, unit: str) -> Must:
    """Our value must be `bound` (in `unit`) or more."""
    return Must(f"≥ {written(bound, unit)}", low=bound)


def at_most(bound: float, unit: str) -> Must:
    """Our value must be `bound` (in `unit`) or less."""
    return Must(f"≤ {written(bound, unit)}", high=bound)


def reported() -> Must:
    """Nothing is promised; the number is shown."""
    return Must("reported")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        what: the situation measured, in the words of the house.
        unit: of `ours` and `rival`: `s`, `bytes`, `bytes/chunk`, `chunks/s`, `%`, …
        ours: median, or the quantile that `what` names; None if it could not be measured.
        rival: the same of the rival, measured in the same run; None if the row has no rival.
        ratio: as `ratio_reads` tells, the median over pairs of runs.
        samples: every run by name, in the order in which they were made.
    """

    what: str
    unit: str
    ours: float | None
    must: Must
    rival: float | None = None
    rival_name: str = ""
    ratio: float | None = None
    ratio_reads: str = ""
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """What `must` says of this row."""
        return self.must.verdict(self.ours, self.ratio)

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values, verdict included; `from_dict` reads it back."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Row:
        """Read what `as_dict` wrote."""
        values = {name: value for name, value in stored.items() if name != "verdict"}
        return cls(**{**values, "must": Must(**values["must"])})

    @classmethod
    def of_failure(cls, what: str, why: str) -> Row:
        """The row of a benchmark that ended before it had measured."""
        return cls(what, "", None, Must("measured", low=0), note=why)


def paired_row(
    what: str,
    unit: str,
    ours: list[float],
    rival: list[float],
    must: Must,
    *,
    rival_name: str,
    reads: Ratio = Ratio.OURS_OVER_RIVAL,
    note: str = "",
) -> Row:
    """The row of paired runs: the medians of both sides, and the median of the ratios of the pairs."""
    first, second = (ours, rival) if reads is Ratio.OURS_OVER_RIVAL else (rival, ours)
    return Row(
        what,
        unit,
        median(ours),
        must,
        rival=median(rival),
        rival_name=rival_name,
        ratio=median(pairwise(first, second)),
        ratio_reads=reads.value,
        note=note,
        samples={"ours": ours, rival_name: rival},
    )


_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SIZE_STEPS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def written(value: float | None, unit: str) -> str:
    """A value for people: three figures and a unit of fitting size; a dash for an absent one."""
    if value is None:
        return "-"
    if unit == "s":
        return _stepped(value, _TIME_STEPS)
    if unit == "bytes":
        return _stepped(value, _SIZE_STEPS)
    return f"{_figures(value)} {unit}".rstrip()


def _stepped(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{_figures(value / size)} {name}"


def _figures(value: float) -> str:
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
