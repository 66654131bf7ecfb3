"""The strategy language: trees (`tree`), their text (`text`), the arms they compile to (`arms`), and what they tell (`explain`)."""

from opsq.strategy.text import parse
from opsq.strategy.tree import NewestFirst, OldestFirst, Random, Strategy

__all__ = ["NewestFirst", "OldestFirst", "Random", "Strategy", "parse"]
