"""``ringleader completion``: prints a script that completes commands and options.

The scripts are generated from the commands and hold all words, so that completing
starts no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer


class Shell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True)
class _Option:
    flags: tuple[str, ...]
    help: str


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    summary: str
    options: tuple[_Option, ...]
    words: tuple[str, ...]
    """Values of its arguments, where they are a fixed set."""

    def flags(self) -> list[str]:
        """Return every spelling of its options."""
        return [flag for option in self.options for flag in option.flags]


def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell that you use.")],
) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    For bash, add this line to ~/.bashrc; for zsh, to ~/.zshrc after
    compinit: eval "$(ringleader completion bash)". For fish: ringleader
    completion fish > ~/.config/fish/completions/ringleader.fish.
    """
    write = {Shell.BASH: _bash, Shell.ZSH: _zsh, Shell.FISH: _fish}[shell]
    typer.echo(write(_commands()))


def _commands() -> list[_Command]:
    from ringleader.cli.main import SUMMARIES, load_command

    return [
        _describe(name, text, load_command(name)) for name, text in SUMMARIES.items()
    ]


def _describe(name: str, summary: str, command: Any) -> _Command:  # noqa: ANN401
    options = [_Option(("--help",), "Show this message and exit.")]
    words: tuple[str, ...] = ()
    for parameter in command.params:
        if parameter.param_type_name == "option":
            flags = (*parameter.opts, *parameter.secondary_opts)
            options.append(_Option(flags, parameter.help or ""))
        elif name == "completion":
            words = tuple(Shell)
    return _Command(name, summary, tuple(options), words)


def _bash(commands: list[_Command]) -> str:
    """Return the script of bash: words of a command, or else files."""
    names = " ".join(each.name for each in commands)
    cases = "\n".join(
        f"    {each.name}) words='{' '.join([*each.flags(), *each.words])}' ;;"
        for each in commands
    )
    return f"""\
_ringleader() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{names} --help --version' -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case $word in -*) ;; *) COMPREPLY+=($(compgen -f -- "$word")) ;; esac
}}
complete -o filenames -F _ringleader ringleader"""


def _zsh(commands: list[_Command]) -> str:
    """Return the script of zsh."""
    names = " ".join(_quoted(f"{each.name}:{each.summary}") for each in commands)
    cases = "\n".join(
        f"    {each.name}) found=({' '.join(_zsh_words(each))}) ;;" for each in commands
    )
    return f"""\
#compdef ringleader
_ringleader() {{
  local -a commands found
  commands=({names})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
  esac
  _describe -o option found
  [[ $PREFIX == -* ]] || _files
}}
compdef _ringleader ringleader"""


def _zsh_words(command: _Command) -> list[str]:
    described = [
        _quoted(f"{flag}:{option.help}")
        for option in command.options
        for flag in option.flags
    ]
    return [*described, *command.words]


def _fish(commands: list[_Command]) -> str:
    """Return the script of fish."""
    start = "complete -c ringleader"
    lines = [f"{start} -n __fish_use_subcommand -l version -d 'Print the version.'"]
    for each in commands:
        first = f"{start} -f -n __fish_use_subcommand -a {each.name}"
        lines.append(f"{first} -d {_quoted(each.summary)}")
        when = f"{start} -n '__fish_seen_subcommand_from {each.name}'"
        if each.words:
            lines.append(f"{when} -f -a '{' '.join(each.words)}'")
        for option in each.options:
            spelled = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in option.flags
            )
            lines.append(f"{when} {spelled} -d {_quoted(option.help)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return ``text`` in single quotes, which all three shells read alike."""
    return "'" + text.replace("\\", "").replace("'", '"') + "'"
