"""Prompts the user, reads piped input, and turns errors into exit codes."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, RingleaderError
from ringleader.identity.secret_value import Secret

_PIPE_S = 30.0
"""How long piped input may take; input at a terminal has no limit."""
_LINE_BYTES = 1024


@contextmanager
def exit_on_error(command: str) -> Iterator[None]:
    """Print a RingleaderError and exit: with 2 for a ConfigError, otherwise with 1."""
    try:
        yield
    except RingleaderError as error:
        typer.echo(f"ringleader {command}: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def is_interactive() -> bool:
    """Whether a user can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def prompt(question: str, otherwise: str) -> Secret[str]:
    """Read a line from the user, or else from the pipe.

    Raises ConfigError with the text ``otherwise`` if the line is empty.
    """
    if is_interactive():
        typer.echo(question, err=True, nl=False)
        line = Secret(sys.stdin.readline(_LINE_BYTES))
    else:
        line = _piped()
    if not line.reveal().strip():
        raise ConfigError(otherwise)
    return line


def _piped() -> Secret[str]:
    """Read the first line of standard input without waiting for end-of-file."""
    descriptor = sys.stdin.fileno()
    deadline = Deadline.after(_PIPE_S)
    found = b""
    while b"\n" not in found and len(found) < _LINE_BYTES and not deadline.is_over():
        if not _is_readable(descriptor, deadline.left_s()):
            break
        block = os.read(descriptor, _LINE_BYTES - len(found))
        if not block:
            break
        found += block
    return Secret(found.partition(b"\n")[0].decode(errors="replace"))


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    if sys.platform == "win32":  # select supports only sockets there; read blocks
        return True
    return bool(select.select([descriptor], [], [], timeout_s)[0])
