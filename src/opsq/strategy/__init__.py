"""The strategy language: trees (`tree`), their text (`text`), the arms they compile to (`arms`), notes (`explain`)."""

from opsq.strategy.text import parse
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    Max,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
    Value,
)

__all__ = [
    "CustomPriority",
    "Fair",
    "Max",
    "MaxSimultaneous",
    "NewestFirst",
    "OldestFirst",
    "OrElse",
    "Percent",
    "PreferDistinct",
    "Random",
    "SelectOnly",
    "Strategy",
    "Value",
    "parse",
]
