"""The pages of `--help`, as typer draws them from what the verbs declare, and the command line without a verb.

It must not import a verb but the one that is asked for. Nothing else needs typer: it takes longer to load than most
verbs to run.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from copy import copy
from typing import Any, Literal

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.exceptions import Abort, Exit, TyperException

from opsq.cli.verb_table import GROUPS, HELP, VERBS, VERSION, function_of
from opsq.errors import UsageError
from opsq.options.command_line import explained
from opsq.options.option import GLOBAL, OneOf, Option, declared
from opsq.version import __version__

_HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}


def show(name: str, words: Sequence[str]) -> int:
    """Print the page of a verb, or, of a group or without a verb, answer the rest of the command line.

    Returns:
        The exit status.
    """
    try:
        if name and name not in GROUPS:
            command(name).make_context(f"opsq {name}", ["--help"])
        else:
            _list(name, list(words))
    except TyperException as error:
        raise UsageError(error.format_message(), hint=explained(name)) from error
    except Exit as error:
        return error.exit_code
    except Abort as error:
        raise KeyboardInterrupt from error
    return 0


def command(name: str) -> TyperCommand:
    """A verb as typer sees it, made from its declarations."""
    function = function_of(name)
    return TyperCommand(
        name,
        params=[_parameter(each, option, name) for each, option in declared(function).options.items()],
        help=inspect.getdoc(function),
        rich_markup_mode=_markup_mode(),
        context_settings=_HELP_OPTIONS,
    )


def listing(group: str = "") -> TyperGroup:
    """All verbs as `opsq --help` lists them, of which none is imported; or the verbs of a group."""
    if group:
        summaries = {part: _short(inspect.getdoc(function_of(f"{group} {part}"))) for part in GROUPS[group]}
        commands: dict[str, Any] = {part: TyperCommand(part, short_help=text) for part, text in summaries.items()}
        params, help_text = [], VERBS[group].summary
    else:
        commands = {
            name: TyperCommand(name, short_help=place.summary, rich_help_panel=place.panel)
            for name, place in VERBS.items()
        }
        params = [_parameter(name, option, "") for name, option in {"version": VERSION, **GLOBAL}.items()]
        help_text = HELP
    return TyperGroup(
        name=group or "opsq",
        commands=commands,
        params=params,
        help=help_text,
        rich_markup_mode=_markup_mode(),
        context_settings=_HELP_OPTIONS,
    )


# --- inside -----------------------------------------------------------------------------------------------------------


def _list(group: str, words: list[str]) -> None:
    """Answer a command line without a verb."""
    with listing(group).make_context(f"opsq {group}".rstrip(), words) as context:
        if not context.params["version"]:
            raise UsageError("No verb was given.", hint="`opsq --help` lists the verbs; `opsq demo` demonstrates them.")
    sys.stdout.write(f"opsq {__version__}\n")


def _parameter(name: str, option: Option, verb: str) -> TyperOption | TyperArgument:
    """An option or argument as typer declares it; its value stays text, for the reader of the option."""
    metavar = f"<{option.metavar}>" if isinstance(option.read, OneOf) and option.metavar.islower() else option.metavar
    shown = option.default_text or None
    if not option.flags:
        return _Argument(
            option.usage,
            param_decls=[name],
            type=str,
            required=not option.is_optional,
            default=shown,
            nargs=-1 if option.is_many else 1,
            metavar=metavar,
            help=option.help,
        )
    return TyperOption(
        param_decls=[name, *option.flags],
        type=None if option.is_flag else str,
        is_flag=option.is_flag,
        default=False if option.is_flag else shown,
        multiple=option.is_many,
        metavar=metavar or None,
        help=option.help,
        envvar=option.variable(verb) or None,
        show_envvar=True,
        show_default=True,
    )


class _Argument(TyperArgument):
    """An argument that help shows as manuals do, without the type that all have: text."""

    def __init__(self, usage: str, **given: Any) -> None:
        super().__init__(**given)
        self._usage = usage
        self.type = copy(self.type)
        vars(self.type)["get_metavar"] = lambda **_: ""

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        """How it stands in a line of usage."""
        return [self._usage]


def _markup_mode() -> Literal["rich"] | None:
    """Help is drawn on a terminal, and plain elsewhere."""
    return "rich" if sys.stdout is not None and sys.stdout.isatty() else None


def _short(help_text: str | None) -> str:
    """The first statement of a help text: what fits a line of a list of verbs."""
    return re.split(r"[.:;](?:\s|$)", help_text or "", maxsplit=1)[0] + "."
