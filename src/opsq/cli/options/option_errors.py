"""What the parser of options says of a word that it cannot read, in the words of opsq.

It must not decide what is right: it only tells what the parser has found.
"""

from __future__ import annotations

import re

from typer._click.core import ParameterSource
from typer._click.exceptions import BadParameter, ClickException, MissingParameter

_KIND = re.compile(r"'(?P<word>.*)' is not a valid (?P<kind>int|integer|float)( range)?\.", re.DOTALL)
_RANGE = re.compile(
    r"(?P<word>\S+) is not in the range (?:(?P<low>[^<>=]+)<=)?x(?:>=(?P<from>[^<>=]+)|<=(?P<high>[^<>=]+))?\."
)
_CHOICE = re.compile(r"'(?P<word>.*)' is not one of (?P<choices>.*)\.", re.DOTALL)


def worded(error: ClickException) -> str:
    """The complaint of the parser in one sentence that names the option, or the variable that brought the word, and the word."""
    if not isinstance(error, BadParameter) or isinstance(error, MissingParameter) or error.param is None:
        return error.format_message()
    place = _place(error)
    if found := _KIND.fullmatch(error.message):
        kind = "a number" if found["kind"] == "float" else "a whole number"
        return f"{place} {found['word']}: that is not {kind}."
    if found := _RANGE.fullmatch(error.message):
        low = found["low"] or found["from"]
        bounds = (
            f"from {low} to {found['high']}"
            if low and found["high"]
            else f"from {low} on"
            if low
            else f"up to {found['high']}"
        )
        return f"{place} {found['word']}: give a number {bounds}."
    if found := _CHOICE.fullmatch(error.message):
        return f"{place} {found['word']}: give one of {found['choices'].replace(chr(39), '')}."
    return f"{place}: {error.message}"


def _place(error: BadParameter) -> str:
    """What brought the word: the long form of an option, the variable that stands in for it, or the name of an argument."""
    param = error.param
    if param is None:
        return ""
    name = param.name or ""
    if error.ctx is not None and error.ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    if param.param_type_name == "argument":
        return str(getattr(param, "metavar", None) or name)
    return max(param.opts, key=len)
