"""The completion scripts of bash, zsh and fish, made from the command line as `command_line` read it.

A script runs nothing when it is loaded, and does not mind if opsq is missing. While a line is completed, only submission ids, metadata
keys and consumers are asked from the daemon, by `opsq completion KIND`, which says nothing when it cannot know.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from command_line import Command, CommandLine, Flag, Values

HEAD = """\
# Completion of opsq for {shell}. Written by tools/papers.py; do not edit it here.
# It runs nothing when it is loaded; submission ids, metadata keys and consumers come from the daemon, asked by `opsq completion`.
"""
FILES = frozenset({"file", "dir"})


def verbs(line: CommandLine) -> dict[str, str]:
    """What may stand first, with what it does."""
    found = {}
    for command in line.commands:
        name = command.name.partition(" ")[0]
        found[name] = line.groups.get(name, command.summary)
    return found


def members(line: CommandLine, group: str) -> list[Command]:
    """The verbs of a verb."""
    return [command for command in line.commands if command.name.startswith(group + " ")]


# --- bash -------------------------------------------------------------------------------------------------------------------------

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
    local verb= kind= argument= words= options= valued= word i ended=
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
        fi
    done
    if [[ -z $kind ]]; then
        kind=$argument
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
        *) _opsq_ask "$kind" ;;
    esac
    _opsq_tune +o default +o bashdefault
}

complete -o default -o bashdefault -F _opsq opsq
"""
)


def bash(line: CommandLine) -> str:
    """The script for bash."""
    entries = [_bash_verb("''", "words", tuple(verbs(line)), ())]
    for group in line.groups:
        parts = members(line, group)
        entries.append(_bash_verb(group, "words", tuple(part.name.partition(" ")[2] for part in parts), parts[0].flags))
    values = []
    for name, flags in [*((command.name, command.flags) for command in line.commands), ("*", line.flags)]:
        for kind, words, found in _by_values(flags):
            choice = f" words={shlex.quote(' '.join(words))}" if words else ""
            values.append(f"            {_bash_patterns(name, found)}) kind={kind}{choice} ;;")
    for command in line.commands:
        argument = command.argument or Values("")
        entries.append(_bash_verb(shlex.quote(command.name), argument.kind, argument.words, command.flags))
    fill = {
        "@GLOBAL_WITH_VALUE@": " | ".join(name for flag in line.flags if flag.takes_value for name in flag.names),
        "@GLOBAL_VALUED@": _names(flag for flag in line.flags if flag.takes_value),
        "@GLOBAL@": _names(line.flags),
        "@GROUPS@": " | ".join(line.groups),
        "@VERBS@": "\n".join(entries),
        "@VALUES@": "\n".join(values),
    }
    return _filled(BASH, fill)


def _bash_verb(pattern: str, kind: str, words: tuple[str, ...], flags: Iterable[Flag]) -> str:
    parts = {
        "argument": kind,
        "words": " ".join(words),
        "options": _names(flags),
        "valued": _names(flag for flag in flags if flag.takes_value),
    }
    given = [f"{name}={shlex.quote(text)}" for name, text in parts.items() if text]
    return f"        {pattern}) {' '.join([*given, ';;'])}"


def _bash_patterns(verb: str, flags: Iterable[Flag]) -> str:
    prefix, head = ("*", "") if verb == "*" else ("", verb)
    return " | ".join(f"{prefix}'{head} {name}'" for flag in flags for name in flag.names)


# --- zsh --------------------------------------------------------------------------------------------------------------------------

ZSH = (
    "#compdef opsq\n"
    + HEAD.replace("{shell}", "zsh")
    + r"""
_opsq_ask() { # KIND TITLE [OPTION…]: offer what the daemon knows
  local kind=$1 title=$2 line
  local -a found lines
  shift 2
  local program=${opsq_line[1]/#\~\//$HOME/}
  whence -- $program >/dev/null || return 1
  lines=("${(@f)$($program completion $kind -- "${(@)opsq_line[2,CURRENT_OPSQ-1]}" 2>/dev/null)}")
  for line in $lines; do
    found+=("${${line%%$'\t'*}//:/\\:}${${(M)line%%$'\t'*}:+:${line#*$'\t'}}")
  done
  (( $#found )) && _describe -V -t $kind $title found "$@"
}
_opsq_ids() { _opsq_ask ids submission }
_opsq_open() { _opsq_ask open submission }
_opsq_ended() { _opsq_ask ended submission }
_opsq_consumers() { _opsq_ask consumers consumer }
_opsq_keys() { _opsq_ask keys 'metadata key' }
_opsq_pair() {
  if compset -P '*='; then
    _message value
  else
    _opsq_ask keys 'metadata key' -S = -q
  fi
}

_opsq() {
  local curcontext=$curcontext state line ret=1
  local -a opsq_line=("${(Q@)words}") flags verbs
  local -i CURRENT_OPSQ=CURRENT
  typeset -A opt_args
  flags=(
@GLOBAL@
  )
  _arguments -C -s -S $flags '1: :->verb' '*::argument:->argument' && return 0
  case $state in
    verb)
      verbs=(
@VERBS@
      )
      _describe -t verbs verb verbs && ret=0
      ;;
    argument)
      curcontext=${curcontext%:*}-$words[1]:
      case $words[1] in
@COMMANDS@
      esac
      ;;
  esac
  return ret
}

if [[ $funcstack[1] == _opsq ]]; then
  _opsq "$@"
else
  compdef _opsq opsq
fi
"""
)


def zsh(line: CommandLine) -> str:
    """The script for zsh."""
    commands = []
    for name in verbs(line):
        if name not in line.groups:
            [command] = [command for command in line.commands if command.name == name]
            commands += [f"        {name})", *_zsh_arguments(command, " " * 10), "          ;;"]
            continue
        parts = members(line, name)
        commands += [f"        {name})", "          if (( CURRENT == 2 )); then", "            verbs=("]
        commands += [f"              {_zsh_quote(part.name.partition(' ')[2] + ':' + part.summary)}" for part in parts]
        commands += ["            )", "            _describe -t verbs verb verbs && ret=0", "            return ret", "          fi"]
        commands += ["          shift words", "          (( CURRENT-- ))", "          case $words[1] in"]
        for part in parts:
            commands += [f"            {part.name.partition(' ')[2]})", *_zsh_arguments(part, " " * 14), "              ;;"]
        commands += ["          esac", "          ;;"]
    fill = {
        "@GLOBAL@": "\n".join(f"    {spec}" for flag in line.flags for spec in _zsh_flag(flag)),
        "@VERBS@": "\n".join(f"        {_zsh_quote(f'{name}:{text}')}" for name, text in verbs(line).items()),
        "@COMMANDS@": "\n".join(commands),
    }
    return _filled(ZSH, fill)


def _zsh_arguments(command: Command, indent: str) -> Iterator[str]:
    specs = [spec for flag in command.flags for spec in _zsh_flag(flag)]
    if command.argument is not None and command.argument.kind == "command":
        specs += ["'(-)1: : _command_names -e'", "'*::argument: _normal'"]
    elif command.argument is not None:
        many = "*" if command.is_many else "1"
        specs.append(_zsh_quote(f"{many}:{command.argument.metavar}:{_zsh_action(command.argument)}"))
    yield f"{indent}_arguments -s -S $flags" + "".join(f" \\\n{indent}  {spec}" for spec in specs) + " && ret=0"


def _zsh_flag(flag: Flag) -> Iterator[str]:
    names = [name + ("=" if name.startswith("--") else "+") if flag.takes_value else name for name in flag.names]
    head = "*" if flag.is_multiple else f"({' '.join(flag.names)})" if len(names) > 1 else ""
    text = _zsh_text(flag.help).replace("[", "\\[").replace("]", "\\]")
    tail = f"[{text}]" + (f":{_zsh_text(flag.values.metavar)}:{_zsh_action(flag.values)}" if flag.takes_value else "")
    for name in names:
        yield _zsh_quote(f"{head}{name}{tail}")


def _zsh_action(values: Values) -> str:
    match values.kind:
        case "":
            return " "
        case "file":
            return "_files"
        case "dir":
            return "_files -/"
        case "words":
            return f"({' '.join(values.words)})"
        case kind:
            return f"_opsq_{kind}"


def _zsh_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish -------------------------------------------------------------------------------------------------------------------------

FISH = (
    HEAD.replace("{shell}", "fish")
    + r"""
function __opsq_verb --description 'Print the verb of the command line so far'
    set -l words (commandline -opc)
    set -e words[1]
    set -l verb
    while set -q words[1]
        switch $words[1]
            case @GLOBAL_WITH_VALUE@
                set -q words[2]; and set -e words[1]
            case '-*'
                set -q verb[1]; and break
            case '*'
                set -a verb $words[1]
                contains -- $verb[1] @GROUPS@; and not set -q verb[2]; or break
        end
        set -e words[1]
    end
    string join ' ' -- $verb
end

function __opsq_at --description 'Whether this is the verb' --argument-names wanted
    set -l verb (__opsq_verb)
    test "$verb" = "$wanted"
end

function __opsq_ask --description 'Print what the daemon knows of a kind' --argument-names kind
    set -l words (commandline -opc)
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -e words[1]
    type -q -- $program; and $program completion $kind -- $words 2>/dev/null
end

function __opsq_pairs --description 'Print metadata keys, ready for a value'
    string replace -r '(\t.*)?$' '=' -- (__opsq_ask keys)
end

function __opsq_command --description 'Complete the program that opsq runs, and its arguments'
    set -l words (commandline -opc)
    if set -l at (contains -i -- -- $words)
        set -e words[1..$at]
        complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
    end
end

complete -c opsq -f
"""
)


def fish(line: CommandLine) -> str:
    """The script for fish."""
    lines = [_fish_flag(flag, "") for flag in line.flags]
    for name, text in verbs(line).items():
        lines.append(f"complete -c opsq -n '__opsq_at \"\"' -a {name} -d {_fish_quote(text)}")
    for group in line.groups:
        for part in members(line, group):
            name = part.name.partition(" ")[2]
            lines.append(f"complete -c opsq -n '__opsq_at {group}' -a {name} -d {_fish_quote(part.summary)}")
    for command in line.commands:
        lines.append(f"\n# opsq {command.name}")
        condition = f"-n '__opsq_at {_fish_verb(command.name)}' "
        if command.argument is not None and command.argument.kind:
            lines.append(f"complete -c opsq {condition}{_fish_values(command.argument)}")
        lines += [_fish_flag(flag, condition) for flag in command.flags]
    groups = " ".join(line.groups)
    fill = {
        "@GLOBAL_WITH_VALUE@": " ".join(name for flag in line.flags if flag.takes_value for name in flag.names),
        "@GROUPS@": groups,
    }
    return _filled(FISH, fill) + "\n" + "\n".join(lines) + "\n"


def _fish_verb(name: str) -> str:
    return f'"{name}"' if " " in name else name


def _fish_flag(flag: Flag, condition: str) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    values = f" {_fish_values(flag.values, is_option=True)}" if flag.takes_value else ""
    return f"complete -c opsq {condition}{names}{values} -d {_fish_quote(flag.help)}"


def _fish_values(values: Values, *, is_option: bool = False) -> str:
    exclusive = "-x" if is_option else "-k"
    match values.kind:
        case "":
            return exclusive
        case "file":
            return "-r -F" if is_option else "-F"
        case "dir":
            return f"{exclusive} -a '(__fish_complete_directories)'"
        case "words":
            return f"{exclusive} -a {_fish_quote(' '.join(values.words))}"
        case "pair":
            return f"{exclusive} -a '(__opsq_pairs)'"
        case "command":
            return "-a '(__opsq_command)'"
        case kind:
            return f"{exclusive} -a '(__opsq_ask {kind})'"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- common -----------------------------------------------------------------------------------------------------------------------


def _names(flags: Iterable[Flag]) -> str:
    return " ".join(name for flag in flags for name in reversed(flag.names))


def _by_values(flags: Iterable[Flag]) -> list[tuple[str, tuple[str, ...], list[Flag]]]:
    """The flags for whose value something can be offered, grouped by what that is."""
    found: dict[tuple[str, tuple[str, ...]], list[Flag]] = {}
    for flag in flags:
        if flag.values.kind:
            found.setdefault((flag.values.kind, flag.values.words), []).append(flag)
    return [(kind, words, group) for (kind, words), group in found.items()]


def _filled(template: str, fill: dict[str, str]) -> str:
    for mark, text in fill.items():
        template = template.replace(mark, text)
    return template
