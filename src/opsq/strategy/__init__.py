"""The strategy language: trees (`tree`), their text (`text`), the arms they compile to (`arms`), notes (`explain`)."""

from opsq.strategy.text import parse
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
)

__all__ = [
    "CustomPriority",
    "Fair",
    "MaxSimultaneous",
    "NewestFirst",
    "OldestFirst",
    "OrElse",
    "Percent",
    "PreferDistinct",
    "Random",
    "SelectOnly",
    "Strategy",
    "parse",
]
