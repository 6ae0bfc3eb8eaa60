"""`octavo completion`: a script that completes commands, flags, choices and models in a shell.

Everything but the models is written into the script, from the specs the commands themselves are parsed with. Models are
asked for when they are needed (`octavo list --names`). Two scripts hold one table; zsh reads bash's through its own
bashcompinit.
"""

from __future__ import annotations

import shlex
from typing import Literal, NamedTuple

import msgspec

from octavo.cli.commands import COMMANDS, spec_of
from octavo.cli.errors import OK
from octavo.cli.flags import parse
from octavo.cli.spec import Flag, Positional, Spec, flags_of

Shell = Literal["bash", "zsh", "fish"]
FILES = ("config", "chat_template", "input", "output", "load", "files", "uds", "out", "output_dir")
"""Fields that hold the path of a file."""
FOLDERS = ("download_dir",)
GLOBAL = ("--help", "--version", "--debug")


class CompletionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Options."""

    shell: Shell
    """bash, zsh or fish."""


NOTES = """\
bash: eval "$(octavo completion bash)"        in ~/.bashrc
zsh:  eval "$(octavo completion zsh)"         in ~/.zshrc, after compinit
fish: octavo completion fish | source         in ~/.config/fish/config.fish
"""

SPEC = Spec(
    "completion", "Print a script that completes octavo's commands.", (CompletionFlags,), (Positional("shell"),), NOTES
)


class Option(NamedTuple):
    text: str
    values: tuple[str, ...] | None
    """None: it takes no value. Empty: any."""
    kind: str
    """"file", "folder" or ""."""


class Line(NamedTuple):
    """What may stand after a command."""

    options: tuple[Option, ...]
    model: bool
    """Whether its first argument is a model."""
    words: tuple[str, ...]
    """What else its first argument may be."""


def run(argv: list[str]) -> int:
    parsed = parse(SPEC, argv)
    if parsed is None:
        return OK
    print(SCRIPTS[parsed[CompletionFlags].shell](lines()), end="")
    return OK


def lines() -> dict[str, Line]:
    """Every command's, by name."""
    return {name: _line(spec_of(name)) for name in COMMANDS}


def _line(spec: Spec) -> Line:
    flags = flags_of(spec)
    taken = [p.name for p in spec.positionals]
    options: list[Option] = []
    for flag in flags.values():
        if flag.name not in taken:
            options += _options(flag)
    first = flags[taken[0]] if taken else None
    words = tuple(map(str, first.choices or ())) if first else ()
    words += spec.words or tuple(spec.command.split()[1:])  # eval perplexity
    return Line((*options, Option("--help", None, "")), "model" in taken, words)


def _options(flag: Flag) -> list[Option]:
    if flag.type is bool:
        negated = flag.default is True
        return [Option(f"--no-{flag.text[2:]}" if negated else flag.text, None, "")]
    kind = "file" if flag.name in FILES else "folder" if flag.name in FOLDERS else ""
    return [Option(flag.text, tuple(map(str, flag.choices or ())), kind)]


def _bash(table: dict[str, Line]) -> str:
    cases = "\n".join(_bash_case(name, line) for name, line in table.items())
    return BASH.replace("@COMMANDS@", " ".join([*table, *GLOBAL])).replace("@CASES@", cases)


def _bash_case(name: str, line: Line) -> str:
    valued = [o for o in line.options if o.values is not None]
    answers = [f'{o.text}) values="{" ".join(o.values)}" ;;' for o in valued if o.values]
    for kind in ("file", "folder"):
        if texts := "|".join(o.text for o in valued if o.kind == kind):
            answers.append(f"{texts}) kind={kind} ;;")
    if texts := "|".join(o.text for o in valued if not o.values and not o.kind):
        answers.append(f"{texts}) kind=text ;;")
    inner = "\n".join(f"          {a}" for a in answers)
    return f"""    {name})
      flags="{" ".join(o.text for o in line.options)}" valued=" {" ".join(o.text for o in valued)} "
      words="{" ".join(line.words)}" model={int(line.model)}
      case "$previous" in
{inner}
      esac ;;"""


BASH = r"""# Completion of octavo for bash (and zsh, through bashcompinit). Written by: octavo completion bash
_octavo() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" line i word
  local command="" flags="" valued="" words="" model=0 values="" kind="" before=0
  COMPREPLY=()
  # The word as the user sees it: bash breaks words at ':' and '=', and models hold colons.
  line="${COMP_LINE:0:$COMP_POINT}"
  current="${line##*[[:space:]]}"
  command="${COMP_WORDS[1]}"
  if [ "$COMP_CWORD" -le 1 ]; then
    _octavo_reply "" "$current" "@COMMANDS@"
    return
  fi
  line="${line%"$current"}"
  previous="${line%"${line##*[![:space:]]}"}"
  previous="${previous##*[[:space:]]}"
  local prefix=""
  case "$current" in
    --*=*) previous="${current%%=*}" prefix="${current%%=*}=" current="${current#*=}" ;;
  esac
  case "$command" in
@CASES@
    *) return ;;
  esac
  if [ -n "$values" ]; then
    _octavo_reply "$prefix" "$current" "$values"
  elif [ "$kind" = file ] || [ "$kind" = folder ]; then
    _octavo_files "$current" "$kind"
  elif [ "$kind" = text ]; then
    return
  elif [[ "$current" == -* ]]; then
    _octavo_reply "" "$current" "$flags"
  else
    # Arguments that stand before this word, values of flags not counted.
    local skip=0
    for word in ${line#*"$command"}; do
      if [ "$skip" = 1 ]; then skip=0
      elif [[ "$word" == -* ]]; then
        if [[ "$valued" == *" $word "* ]]; then skip=1; fi
      elif [[ " $words " != *" $word "* ]] || [ "$model" = 0 ]; then before=$((before + 1)); fi
    done
    if [ "$before" = 0 ]; then
      if [ "$model" = 1 ]; then words="$words $(octavo list --names 2>/dev/null)"; fi
      _octavo_reply "" "$current" "$words"
    fi
    if [ "${#COMPREPLY[@]}" = 0 ]; then _octavo_files "$current" file; fi
  fi
}

_octavo_files() {
  local IFS=$'\n'
  if [ "$2" = folder ]; then COMPREPLY=($(compgen -d -- "$1")); else COMPREPLY=($(compgen -f -- "$1")); fi
  compopt -o filenames 2>/dev/null
}

# Adds the words that begin with $2, without what bash believes to be an earlier word.
_octavo_reply() {
  local word cut="" whole="$1$2"
  if [ -n "$BASH_VERSION" ]; then
    case "$whole" in
      *[:=]*) cut="${whole%"${whole##*[:=]}"}" ;;
    esac
  fi
  for word in $3; do
    case "$word" in
      "$2"*) word="$1$word"; COMPREPLY+=("${word#"$cut"}") ;;
    esac
  done
}

complete -F _octavo octavo
"""

ZSH = "# Completion of octavo for zsh. Written by: octavo completion zsh\nautoload -U +X bashcompinit && bashcompinit\n"


def _zsh(table: dict[str, Line]) -> str:
    # zsh splits an unquoted $words only where it is told to.
    body = _bash(table).partition("\n")[2].replace("_octavo() {", "_octavo() {\n  setopt localoptions shwordsplit", 1)
    body = body.replace("_octavo_reply() {", "_octavo_reply() {\n  setopt localoptions shwordsplit", 1)
    return ZSH + body


def _fish(table: dict[str, Line]) -> str:
    names = " ".join(table)
    out = [
        "# Completion of octavo for fish. Written by: octavo completion fish",
        "complete -c octavo -f",
        *(
            f"complete -c octavo -n '__fish_use_subcommand' -a {name} -d {shlex.quote(COMMANDS[name].summary)}"
            for name in table
        ),
    ]
    for name, line in table.items():
        here = f"complete -c octavo -n '__fish_seen_subcommand_from {name}'"
        if line.model:
            out.append(f"{here} -F -a '(octavo list --names 2>/dev/null)'")
        if line.words:
            out.append(f"{here} -a {shlex.quote(' '.join(line.words))}")
        for option in line.options:
            text = f"{here} -l {option.text[2:]}"
            if option.values:
                text += f" -x -a {shlex.quote(' '.join(option.values))}"
            elif option.kind:
                text += " -r -F"
            elif option.values is not None:
                text += " -x"
            out.append(text)
    return "\n".join([*out, f"# commands: {names}"]) + "\n"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
