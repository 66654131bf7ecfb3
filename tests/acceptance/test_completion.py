"""opsq completion: the script that was installed, as it is."""

from pathlib import Path

import pytest

COMPLETIONS = Path(__file__).parents[2] / "completions"


def test_unknown_shell_is_exit_2(opsq):
    assert opsq("completion", "tcsh").status == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_printed_unchanged_or_said_to_be_missing(opsq, shell):
    ran = opsq("completion", shell)
    if ran.status == 0:
        assert ran.out == (COMPLETIONS / f"opsq.{shell}").read_bytes()
    else:
        assert ran.status == 2
        assert "not installed" in ran.err
