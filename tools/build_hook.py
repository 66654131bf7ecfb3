"""Says where the wheel puts man pages and completions; run by hatchling at build time.

It must build nothing itself: the files are committed, and a folder that is missing is no error.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "opsq.bash": "share/bash-completion/completions/opsq",
    "opsq.zsh": "share/zsh/site-functions/_opsq",
    "opsq.fish": "share/fish/vendor_completions.d/opsq.fish",
}


class PapersHook(BuildHookInterface[Any]):
    """Adds `man/*.{1,5,7}` and `completions/opsq.*` to the wheel's data files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Map each paper that exists to its place under the installation prefix."""
        del version  # "standard" or "editable": both get the papers
        root = Path(self.root)
        shared: dict[str, str] = build_data["shared_data"]
        for section in ("1", "5", "7"):
            for page in sorted(root.glob(f"man/*.{section}")):
                shared[str(page)] = f"share/man/man{section}/{page.name}"
        for name, place in COMPLETIONS.items():
            if (root / "completions" / name).exists():
                shared[str(root / "completions" / name)] = place
