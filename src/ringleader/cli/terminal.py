"""How commands ask people, read what is piped in, and end with an error."""

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
"""How long piped input may take; a terminal may take as long as its user."""
_LINE_BYTES = 1024


@contextmanager
def exit_on_error(command: str) -> Iterator[None]:
    """End with 2 when the request makes no sense, with 1 when it came to nothing."""
    try:
        yield
    except RingleaderError as error:
        typer.echo(f"ringleader {command}: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def is_interactive() -> bool:
    """Whether somebody sits there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def prompt(question: str, otherwise: str) -> Secret[str]:
    """A line from the user, or else from the pipe; ``otherwise`` if there is none."""
    if is_interactive():
        typer.echo(question, err=True, nl=False)
        line = Secret(sys.stdin.readline(_LINE_BYTES))
    else:
        line = _piped()
    if not line.reveal().strip():
        raise ConfigError(otherwise)
    return line


def _piped() -> Secret[str]:
    """The first line of standard input, unbuffered: a pipe may stay open for ever."""
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
    if sys.platform == "win32":  # select knows only sockets there; read waits
        return True
    return bool(select.select([descriptor], [], [], timeout_s)[0])
