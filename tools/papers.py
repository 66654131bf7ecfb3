r"""Writes what can be generated of the manual, of the completions, and the OpenAPI document of the gateway.

With --check only says what is stale, and fails if anything is.

The one generator: it walks the command line once (`command_line`), and what Python is promised (`python_reference`). In
man/*.1, man/opsq-python.7 and man/opsq-json.7 it owns the parts between `.\" generated: NAME` and `.\" end generated`;
all else there is written by hand and left alone. A verb without a page gets one to start from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import completions
import completions_bash
import msgspec
from command_line import Command, CommandLine, Flag, read
from python_reference import reference
from roff import roff, sentence

from opsq.errors import BY_CODE, EXITS
from opsq.gateway.api.door import openapi

ROOT = Path(__file__).parents[1]
TITLE_DATE = "2026-11-27"
_PART = re.compile(r'(\.\\" generated: (\w+)\n)(.*?)(\.\\" end generated\n)', re.DOTALL)


def main(words: list[str]) -> int:
    """Write the papers, or check them.

    Returns:
        The exit status: 1 if something is stale.
    """
    if words not in ([], ["--check"]):
        print("usage: papers.py [--check]", file=sys.stderr)
        return 2
    wanted = papers(read())
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    surplus = [path for path in sorted((ROOT / "man").glob("opsq-*.1")) if path not in wanted]
    for path in surplus:
        print(f"{path.relative_to(ROOT)} is about a verb that opsq does not have: remove it.", file=sys.stderr)
    if words:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run tools/papers.py.", file=sys.stderr)
        return 1 if stale or surplus else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 1 if surplus else 0


def papers(line: CommandLine) -> dict[Path, str]:
    """Every generated file, as it should be."""
    found = {
        ROOT / "completions" / f"opsq.{shell.__name__}": shell(line)
        for shell in (completions_bash.bash, completions.zsh, completions.fish)
    }
    parts = {"verbs": lambda: verb_list(line), "options": lambda: option_list(line.flags)}
    main_page, json_page = ROOT / "man" / "opsq.1", ROOT / "man" / "opsq-json.7"
    found[main_page] = filled(main_page, parts | {"exits": exit_list})
    found[json_page] = filled(json_page, {"codes": code_list})
    for name in line.verbs:
        page = ROOT / "man" / f"opsq-{name}.1"
        found[page] = verb_page(page, name, line)
    python_page = ROOT / "man" / "opsq-python.7"
    found[python_page] = filled(python_page, {"reference": reference})
    found[ROOT / "docs" / "openapi.json"] = msgspec.json.format(msgspec.json.encode(openapi())).decode() + "\n"
    return found


# --- pages ------------------------------------------------------------------------------------------------------------


def verb_page(path: Path, name: str, line: CommandLine) -> str:
    """The page of a verb, or of a verb with verbs of its own."""
    members = line.members(name)
    parts = {
        "synopsis": lambda: ".SH SYNOPSIS\n" + ".PP\n".join(map(synopsis, members)),
        "options": lambda: verb_options(members),
    }
    return filled(path, parts, new_page(name, line.groups.get(name, members[0].help)))


def filled(path: Path, parts: dict[str, Callable[[], str]], otherwise: str = "") -> str:
    """The text of a page with its generated parts as they should be.

    Args:
        otherwise: the page to begin with if there is none.

    Raises:
        SystemExit: the page has not just these parts.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else otherwise
    if sorted(name for _, name, _, _ in _PART.findall(text)) != sorted(parts):
        sys.exit(f"{path.relative_to(ROOT)} must have these generated parts, each once: {', '.join(parts)}")
    return _PART.sub(lambda match: match[1] + parts[match[2]]() + match[4], text)


def new_page(name: str, help_text: str) -> str:
    """A page to be completed by hand."""
    first = help_text.partition("\n\n")[0].split(";")[0].split(":")[0].rstrip(".")
    return f"""\
.TH OPSQ-{name.upper()} 1 {TITLE_DATE} opsq "opsq manual"
.SH NAME
opsq\\-{name} \\- {roff(first[0].lower() + first[1:])}
.\\" generated: synopsis
.\\" end generated
.SH DESCRIPTION
{roff(" ".join(help_text.split()))}
.\\" generated: options
.\\" end generated
.SH SEE ALSO
.BR opsq (1)
"""


def synopsis(command: Command) -> str:
    """How a verb is written."""
    words = [f"\\fBopsq {roff(command.name)}\\fR", "[\\fIoptions\\fR]"]
    for argument in command.arguments:
        metavar = f"\\fI{roff(argument.values.metavar)}\\fR"
        if argument.values.kind == "command":
            words += ["\\fB\\-\\-\\fR", metavar, "[\\fIARG\\fR\\ ...]"]
        else:
            many = "\\ ..." if argument.is_many else ""
            words.append(f"[{metavar}{many}]" if argument.is_optional else f"{metavar}{many}")
    return " ".join(words) + "\n"


def verb_options(members: list[Command]) -> str:
    """The sections about arguments and options."""
    text = ""
    for command in members:
        entries = argument_list(command) + option_list(command.flags)
        if entries:
            text += f".SS Of opsq {roff(command.name)}\n{entries}" if len(members) > 1 else entries
    tail = ".PP\nAll global options of\n.BR opsq (1)\nmay be given here too, among them\n.BR \\-\\-json .\n"
    if not text:
        return f".SH OPTIONS\n{tail.removeprefix('.PP' + chr(10))}"
    return f".SH OPTIONS\n{text}{tail}"


def argument_list(command: Command) -> str:
    """An entry for each argument."""
    return "".join(
        f".TP\n.I {roff(each.values.metavar)}\n{sentence(each.help)}\n" for each in command.arguments if each.help
    )


def option_list(flags: Iterable[Flag]) -> str:
    """An entry for each option."""
    return "".join(f".TP\n{option_head(flag)}\n{option_text(flag)}\n" for flag in flags)


def option_head(flag: Flag) -> str:
    """An option as it is written."""
    names = ", ".join(f"\\fB{roff(name)}\\fR" for name in flag.names)
    gap = " " if flag.takes_value else ""
    return names + (f"{gap}\\fI{roff(flag.values.metavar)}\\fR" if flag.values.metavar else "")


def option_text(flag: Flag) -> str:
    """What an option does, what it may be, and what stands in for it."""
    lines = [sentence(flag.help)]
    if flag.default:
        lines.append(f"Default: {roff(flag.default)}.")
    if flag.variable:
        several = " (several, with blanks between them)" if flag.is_multiple else ""
        lines.append(f"Environment: {roff(flag.variable)}{several}.")
    return "\n".join(lines)


def verb_list(line: CommandLine) -> str:
    """The verbs by what they are for."""
    panels: dict[str, list[str]] = {}
    told = line.verbs
    for command in line.commands:
        name = command.name.partition(" ")[0]
        if name not in panels.setdefault(command.panel, []):
            panels[command.panel].append(name)
    text = ""
    for panel, names in panels.items():
        text += f".SS {panel}\n"
        text += "".join(f".TP\n.BR opsq\\-{name} (1)\n{sentence(told[name])}\n" for name in names)
    return text


def exit_list() -> str:
    """What each exit status means."""
    return "".join(f".TP\n.B {roff(status)}\n{text[0].upper()}{roff(text[1:])}.\n" for status, text in EXITS.items())


def code_list() -> str:
    """The code, the exit status and the meaning of each error."""
    return "".join(
        f'.TP\n.BR {code} " (exit {error.exit_status})"\n{sentence(error.__doc__ or "")}\n'
        for code, error in BY_CODE.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
