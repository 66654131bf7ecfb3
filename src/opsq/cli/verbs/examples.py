"""The verb examples: lists, prints or copies the examples that came with opsq."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from opsq.cli import shipped_examples
from opsq.cli.caller import Caller
from opsq.cli.output.installation_documents import ExamplesDocument, ExampleShape
from opsq.errors import Conflict, InputUnreadable
from opsq.options.option import argument, option


def examples(
    caller: Caller,
    name: str | None = argument("[NAME]", "The example, or a folder of examples."),
    output: str | None = option("-o, --output DIR", "Copy to this folder, in place of printing."),
) -> None:
    """List the examples, print one, or copy some to a folder.

    Files that exist are not overwritten.
    """
    found = shipped_examples.names() if name is None else shipped_examples.named(name)
    texts = {each: shipped_examples.text_of(each) for each in found}
    copies = {} if output is None else {each: Path(output, each) for each in found}
    _copy(copies)
    is_one = output is None and found == [name]
    shapes = [ExampleShape(each, shipped_examples.about(text)) for each, text in texts.items()]
    for shape in shapes:
        if is_one:
            shape.text = texts[shape.name]
        if shape.name in copies:
            shape.path = str(copies[shape.name])
    caller.document(ExamplesDocument(shapes))
    if is_one and not caller.is_json:
        sys.stdout.write(texts[found[0]])
    elif copies:
        caller.lines([str(path) for path in copies.values()])
    else:
        caller.table(("example", "about"), [(shape.name, shape.about) for shape in shapes])


def _copy(copies: dict[str, Path]) -> None:
    """Copy examples, with their permission to be run."""
    if taken := next((path for path in copies.values() if path.exists()), None):
        raise Conflict(f"{taken} exists.", hint="Remove it, or name another folder.")
    for name, path in copies.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(shipped_examples.folder() / name, path)
        except OSError as error:
            raise InputUnreadable(f"Cannot copy {name} to {path}: {error.strerror}.") from error
