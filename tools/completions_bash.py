"""The completion script of bash, made from the command line as `command_line` read it.

It must work in bash 3.2, which macOS has: no associative arrays, no mapfile, and compopt only where there is one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from command_line import CommandLine, Flag
from completions import HEAD, filled

BASH = (
    HEAD.replace("{shell}", "bash 3.2 and newer")
    + r"""
_opsq_ask() { # KIND [SUFFIX]: offer what the daemon knows
    local program=${COMP_WORDS[0]/#\~/$HOME} word
    type "$program" >/dev/null 2>&1 || return 0
    while IFS=$'\t' read -r word _; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$(printf %q "$word")$2")
    done < <("$program" completion "$1" -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)
}

_opsq_tune() { # +o or -o OPTION…: change how the completion is inserted, where bash can (4.0 and newer)
    type compopt >/dev/null 2>&1 && compopt "$@"
    return 0
}

_opsq_program() { # INDEX: the word from which on another command line is typed
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif (($1 == COMP_CWORD)); then
        COMPREPLY=($(compgen -c -- "$cur"))
    fi
}

_opsq() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local verb= kind= argument= many= words= options= valued= word i ended= position=0
    COMPREPLY=()
    # bash cuts words at "="; the value of an option is completed, that of KEY=VALUE is not
    if [[ $cur == = ]]; then
        cur=
        [[ $prev == -* ]] || return 0
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
        [[ $prev == -* ]] || return 0
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
            @GLOBAL_WITH_VALUE@)
                ((i++))
                [[ ${COMP_WORDS[i]} == = ]] && ((i++))
                ;;
            -*) ;;
            *)
                verb=$word
                break
                ;;
        esac
    done
    case $verb in
        @GROUPS@)
            if ((i + 1 < COMP_CWORD)); then
                verb="$verb ${COMP_WORDS[i + 1]}"
                ((i++))
            fi
            ;;
    esac
    case $verb in
@VERBS@
    esac
    options="$options @GLOBAL@" valued=" $valued @GLOBAL_VALUED@ "
    if [[ $valued == *" $prev "* ]]; then
        kind=none
        case "$verb $prev" in
@VALUES@
        esac
    fi
    # what lies between the verb and the cursor: is "--" there, or the program that opsq is to run?
    for ((i++; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $valued == *" $word "* ]]; then
            ((i++))
            [[ ${COMP_WORDS[i]} == = ]] && ((i++))
        elif [[ $argument == command && ($word == -- || $word != -*) ]]; then
            [[ $word == -- ]] && ((i++))
            _opsq_program "$i"
            return 0
        elif [[ $word == -- ]]; then
            ended=1
        elif [[ $word != -* ]]; then
            ((position++))
        fi
    done
    if [[ -z $kind ]]; then
        local kinds=($argument none)
        ((position >= ${#kinds[@]})) && position=$((${#kinds[@]} - 1))
        ((position)) && [[ -n $many && ${kinds[position]} == none ]] && ((position--))
        kind=${kinds[position]}
        if [[ $cur == -* && -z $ended ]]; then
            kind=words words=$options
        fi
    fi
    case $kind in
        file | dir) return 0 ;; # bash itself does it
        command) _opsq_program "$COMP_CWORD" ;;
        words) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
        pair)
            _opsq_ask keys =
            _opsq_tune -o nospace
            ;;
        none | '') ;;
        *)
            _opsq_ask "$kind"
            [[ ${COMPREPLY[0]} == *'(' ]] && _opsq_tune -o nospace
            ;;
    esac
    _opsq_tune +o default +o bashdefault
}

complete -o default -o bashdefault -F _opsq opsq
"""
)


def bash(line: CommandLine) -> str:
    """The script for bash."""
    entries = [_bash_verb("''", ["words"], tuple(line.verbs), ())]
    for group in line.groups:
        parts = line.members(group)
        entries.append(
            _bash_verb(group, ["words"], tuple(part.name.partition(" ")[2] for part in parts), parts[0].flags)
        )
    values = []
    for name, flags in [*((command.name, command.flags) for command in line.commands), ("*", line.flags)]:
        for kind, words, found in _by_values(flags):
            choice = f" words={shlex.quote(' '.join(words))}" if words else ""
            values.append(f"            {_bash_patterns(name, found)}) kind={kind}{choice} ;;")
    for command in line.commands:
        kinds = [argument.values.kind or "none" for argument in command.arguments]
        words = tuple(word for argument in command.arguments for word in argument.values.words)
        is_many = any(argument.is_many for argument in command.arguments)
        entries.append(_bash_verb(shlex.quote(command.name), kinds, words, command.flags, is_many=is_many))
    fill = {
        "@GLOBAL_WITH_VALUE@": " | ".join(name for flag in line.flags if flag.takes_value for name in flag.names),
        "@GLOBAL_VALUED@": _names(flag for flag in line.flags if flag.takes_value),
        "@GLOBAL@": _names(line.flags),
        "@GROUPS@": " | ".join(line.groups),
        "@VERBS@": "\n".join(entries),
        "@VALUES@": "\n".join(values),
    }
    return filled(BASH, fill)


def _bash_verb(
    pattern: str, kinds: list[str], words: tuple[str, ...], flags: Iterable[Flag], *, is_many: bool = False
) -> str:
    parts = {
        "argument": " ".join(kinds),
        "many": "1" if is_many else "",
        "words": " ".join(words),
        "options": _names(flags),
        "valued": _names(flag for flag in flags if flag.takes_value),
    }
    given = [f"{name}={shlex.quote(text)}" for name, text in parts.items() if text]
    return f"        {pattern}) {' '.join([*given, ';;'])}"


def _bash_patterns(verb: str, flags: Iterable[Flag]) -> str:
    prefix, head = ("*", "") if verb == "*" else ("", verb)
    return " | ".join(f"{prefix}'{head} {name}'" for flag in flags for name in flag.names)


def _names(flags: Iterable[Flag]) -> str:
    return " ".join(name for flag in flags for name in reversed(flag.names))


def _by_values(flags: Iterable[Flag]) -> list[tuple[str, tuple[str, ...], list[Flag]]]:
    """The flags for whose value something can be offered, grouped by what that is."""
    found: dict[tuple[str, tuple[str, ...]], list[Flag]] = {}
    for flag in flags:
        if flag.values.kind:
            found.setdefault((flag.values.kind, flag.values.words), []).append(flag)
    return [(kind, words, group) for (kind, words), group in found.items()]
