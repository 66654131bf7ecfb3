"""The completion scripts of zsh and fish, made from the command line as `command_line` read it.

That of bash stands beside.

A script runs nothing when it is loaded, and does not mind if opsq is missing. While a line is completed, submission
ids, metadata keys, consumers and strategies are asked for by `opsq completion KIND`, which says nothing when it cannot
know.
"""

from __future__ import annotations

from collections.abc import Iterator

from command_line import Command, CommandLine, Flag, Values

HEAD = """\
# Completion of opsq for {shell}. Written by tools/papers.py; do not edit it here.
# It runs nothing when it is loaded; `opsq completion` gives submission ids, metadata keys, consumers and strategies.
"""


# --- zsh --------------------------------------------------------------------------------------------------------------

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
_opsq_strategies() { _opsq_ask strategies strategy }
_opsq_explained() { _opsq_ask explained 'strategy or submission' }
_opsq_examples() { _opsq_ask examples example }
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
    for name in line.verbs:
        if name not in line.groups:
            [command] = line.members(name)
            commands += [f"        {name})", *_zsh_arguments(command, " " * 10), "          ;;"]
            continue
        parts = line.members(name)
        commands += [f"        {name})", "          if (( CURRENT == 2 )); then", "            verbs=("]
        commands += [f"              {_zsh_quote(part.name.partition(' ')[2] + ':' + part.summary)}" for part in parts]
        commands += [
            "            )",
            "            _describe -t verbs verb verbs && ret=0",
            "            return ret",
            "          fi",
        ]
        commands += ["          shift words", "          (( CURRENT-- ))", "          case $words[1] in"]
        for part in parts:
            commands += [
                f"            {part.name.partition(' ')[2]})",
                *_zsh_arguments(part, " " * 14),
                "              ;;",
            ]
        commands += ["          esac", "          ;;"]
    fill = {
        "@GLOBAL@": "\n".join(f"    {spec}" for flag in line.flags for spec in _zsh_flag(flag)),
        "@VERBS@": "\n".join(f"        {_zsh_quote(f'{name}:{text}')}" for name, text in line.verbs.items()),
        "@COMMANDS@": "\n".join(commands),
    }
    return filled(ZSH, fill)


def _zsh_arguments(command: Command, indent: str) -> Iterator[str]:
    specs = [spec for flag in command.flags for spec in _zsh_flag(flag)]
    if command.runs_program:
        specs += ["'(-)1: : _command_names -e'", "'*::argument: _normal'"]
    else:
        for place, argument in enumerate(command.arguments, 1):
            many = "*" if argument.is_many else str(place)
            specs.append(_zsh_quote(f"{many}:{_zsh_text(argument.values.metavar)}:{_zsh_action(argument.values)}"))
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


# --- fish -------------------------------------------------------------------------------------------------------------

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
    for name, text in line.verbs.items():
        lines.append(f"complete -c opsq -n '__opsq_at \"\"' -a {name} -d {_fish_quote(text)}")
    for group in line.groups:
        for part in line.members(group):
            name = part.name.partition(" ")[2]
            lines.append(f"complete -c opsq -n '__opsq_at {group}' -a {name} -d {_fish_quote(part.summary)}")
    for command in line.commands:
        lines.append(f"\n# opsq {command.name}")
        condition = f"-n '__opsq_at {_fish_verb(command.name)}' "
        lines += [
            f"complete -c opsq {condition}{_fish_values(each.values)}" for each in command.arguments if each.values.kind
        ]
        lines += [_fish_flag(flag, condition) for flag in command.flags]
    groups = " ".join(line.groups)
    fill = {
        "@GLOBAL_WITH_VALUE@": " ".join(name for flag in line.flags if flag.takes_value for name in flag.names),
        "@GROUPS@": groups,
    }
    return filled(FISH, fill) + "\n" + "\n".join(lines) + "\n"


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


# --- common -----------------------------------------------------------------------------------------------------------


def filled(template: str, fill: dict[str, str]) -> str:
    """A template with its marks replaced."""
    for mark, text in fill.items():
        template = template.replace(mark, text)
    return template
