"""What `--help` prints of each verb is written as people write command lines, and says what the manual says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsq.__main__ import run
from opsq.cli.help_pages import command
from opsq.cli.verb_table import GROUPS, VERBS, function_of
from opsq.options.option import declared

MAN = Path(__file__).parents[3] / "man"
NAMES = [full for name in VERBS for full in ([f"{name} {part}" for part in GROUPS.get(name, ())] or [name])]


def help_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The help of a verb, each entry on one line."""
    assert run([*name.split(), "--help"]) == 0
    return re.sub(r"\n {3,}", " ", capsys.readouterr().out)


def synopsis(name: str) -> str:
    """How the manual writes a verb."""
    text = (MAN / f"opsq-{name.partition(' ')[0]}.1").read_text(encoding="utf-8")
    [line] = re.findall(rf"(?m)^\\fBopsq {re.escape(name)}\\fR .*$", text.replace("\\-", "-"))
    return re.sub(r"\\f.", "", line).replace("\\&", "").replace("\\ ...", "...").replace("[options]", "[OPTIONS]")


@pytest.mark.parametrize("name", NAMES)
def test_usage_is_the_synopsis_of_the_manual(name: str, capsys: pytest.CaptureFixture[str]):
    """With the signs that manuals have, and no others."""
    usage = re.sub(r"\s+", " ", help_of(name, capsys).partition("\n\n")[0])
    assert usage == f"Usage: {synopsis(name)}"


@pytest.mark.parametrize("name", NAMES)
def test_every_default_is_in_the_help(name: str, capsys: pytest.CaptureFixture[str]):
    """Also those of settings."""
    text = help_of(name, capsys)
    for option in declared(function_of(name)).options.values():
        if option.flags and option.default_text:
            assert re.search(rf"(?m)^ .*{option.flags[-1]} .*default: {re.escape(option.default_text)}\]$", text), (
                option
            )


@pytest.mark.parametrize("name", NAMES)
def test_help_has_words_for_values_and_no_types_of_the_parser(name: str, capsys: pytest.CaptureFixture[str]):
    """A value is called what it is; braces, `<str>` and exponents are signs of a machine."""
    text = help_of(name, capsys).replace("replaces {}", "").replace("{in}", "")
    assert not re.search(r"<str>|<text>|\bTEXT\.\.\.|[{}]|\d[eE][+-]?\d|\bNone\b", text)
    for option in declared(function_of(name)).options.values():
        assert option.is_flag or re.match(r"[A-Z]|\[|[a-z]+\|", option.metavar), option
    assert all(parameter.help.endswith(".") for parameter in command(name).params)


def test_help_on_a_terminal_names_no_type(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The drawn help is made by another library."""
    monkeypatch.setattr("opsq.cli.help_pages._markup_mode", lambda: "rich")
    text = help_of("consume", capsys)
    assert "COMMAND" in text
    assert "<str>" not in text
