"""What every benchmark here is made of: rows, pairs, the way to run one file, and the report.

It measures nothing but the machine and its disk, and knows no rival; `rivals` knows those. A file beside this folder
holds each family of rows.
"""

from harness.disk_probe import DiskProbe
from harness.entry import Benchmark, Context, main
from harness.pairs import alternate, median, quantile
from harness.rows import (
    Must,
    Ratio,
    Row,
    at_least,
    at_most,
    paired_row,
    ratio_at_least,
    ratio_at_most,
    reported,
)

__all__ = [
    "Benchmark",
    "Context",
    "DiskProbe",
    "Must",
    "Ratio",
    "Row",
    "alternate",
    "at_least",
    "at_most",
    "main",
    "median",
    "paired_row",
    "quantile",
    "ratio_at_least",
    "ratio_at_most",
    "reported",
]
