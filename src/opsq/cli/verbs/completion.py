"""The verb completion: prints the static completion script of a shell, as it was installed with opsq."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import opsq
from opsq.cli.caller import Caller
from opsq.cli.output.installation_documents import CompletionDocument
from opsq.errors import InputUnreadable
from opsq.options.option import OneOf, argument

_INSTALLED = {
    "bash": "share/bash-completion/completions/opsq",
    "zsh": "share/zsh/site-functions/_opsq",
    "fish": "share/fish/vendor_completions.d/opsq.fish",
}


def completion(
    caller: Caller,
    shell: Literal["bash", "zsh", "fish"] = argument("SHELL", "bash, zsh or fish.", OneOf(("bash", "zsh", "fish"))),
) -> None:
    """Print the completion script for a shell; an installation as root already has it in place.

    For one user: `opsq completion bash >> ~/.bash_completion`, zsh: into a folder of $fpath as `_opsq`, fish: into
    ~/.config/fish/completions/opsq.fish.
    """
    package = Path(opsq.__file__).parent
    places = [Path(sys.prefix, _INSTALLED[shell]), package.parents[1] / "completions" / f"opsq.{shell}"]
    if len(package.parents) > 3:
        places.insert(1, package.parents[3] / _INSTALLED[shell])
    script = next((place.read_text(encoding="utf-8") for place in places if place.is_file()), None)
    if script is None:
        raise InputUnreadable(
            f"The completion script for {shell} is not installed.", hint=f"It was looked for in {places[0]}."
        )
    caller.document(CompletionDocument(shell, script))
    caller.lines(script.splitlines())
