"""The examples that come with the package: where they are, what they are called, what each is about.

It must not change them.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from opsq.errors import InputUnreadable, NotFound

_ABOUT = re.compile(r'^(?:# |"""|<!--\s+| "description": ")((?:.|\n)+?)(?:[.:]?"?\n#?\n|[.?](?=\s|"))', re.MULTILINE)
"""What a file begins to say of itself: its first comment or docstring, up to the end of a sentence."""


def folder() -> Path:
    """Where they are: in the package, or beside the source that it is installed from in place.

    Raises:
        InputUnreadable: in neither place.
    """
    package = Path(str(files("opsq")))
    places = [package / "examples", package.parents[1] / "examples"]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InputUnreadable("The examples are not installed.", hint=f"They were looked for in {places[0]}.")
    return found


def names() -> list[str]:
    """The name of each: its path below the folder."""
    below = folder()
    found = (path for path in below.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted((path.relative_to(below).as_posix() for path in found), key=lambda name: (name.count("/"), name))


def named(name: str) -> list[str]:
    """The examples that a name stands for: itself, or those of a folder.

    Raises:
        NotFound: there is none.
    """
    name = name.rstrip("/")
    found = [each for each in names() if each == name or each.startswith(f"{name}/")]
    if not found:
        raise NotFound(f"There is no example {name!r}.", hint="`opsq examples` lists them.")
    return found


def text_of(name: str) -> str:
    """The content of an example."""
    return (folder() / name).read_text(encoding="utf-8")


def about(text: str) -> str:
    """The first sentence of an example about itself; "" if it has none."""
    found = _ABOUT.search(text)
    return re.sub(r"\s*\n#?\s*", " ", found[1]) if found else ""
