"""Prompts the user, reads piped input, and turns errors into exit codes."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, RingleaderError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.private_file import read_private

if TYPE_CHECKING:  # not every command prints tables
    from rich.console import Console, RenderableType
    from rich.table import Table

AnyJob = Annotated[
    str,
    typer.Argument(help="The job, or the beginning of its name; else the newest."),
]
"""The first argument of commands that show a job."""

PROGRESS_S = 3.0
_PIPE_S = 30.0
"""How long piped input may take; input at a terminal has no limit."""
_LINE_BYTES = 1024
_PIPE_COLUMNS = 10_000
_FILE_BYTES = 4096


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


@contextmanager
def progress(command: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yield what is told each of ``total`` parts of a long work as it begins.

    A terminal shows the part that is under way; elsewhere standard error gets a line
    every few seconds, so that nobody takes the command for stuck.
    """
    from rich.console import Console

    console, num_begun = Console(stderr=True), 0
    due_s = time.monotonic() + PROGRESS_S
    with console.status("") as status:

        def begin(part: str) -> None:
            nonlocal num_begun, due_s
            num_begun += 1
            text = f"{num_begun} of {total}: {part}"
            status.update(text)
            if not console.is_terminal and time.monotonic() >= due_s:
                due_s = time.monotonic() + PROGRESS_S
                typer.echo(f"ringleader {command}: {text}", err=True)

        yield begin


def print_tables(shown: RenderableType, console: Console | None = None) -> None:
    """Print tables; outside of a terminal as wide as they are, a row in a line each.

    In a terminal cells are folded, but for columns of ``add_id``. What does not fit
    then is left to the terminal, and never cut off.
    """
    from rich.console import Console

    console = console or Console(highlight=False)
    if console.is_terminal:
        console.print(shown, crop=False)
        return
    wide = Console(highlight=False, width=_PIPE_COLUMNS, color_system=None)
    with wide.capture() as captured:
        wide.print(shown)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def add_id(table: Table, name: str, values: Iterable[str]) -> None:
    """Add a column of what people copy: it is never broken, however narrow it gets."""
    longest = max((len(value) for value in [name, *values]), default=0)
    table.add_column(name, no_wrap=True, min_width=longest)


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


def read_secret_file(path: Path, option: str) -> Secret[str]:
    """Return the content of a file that only this user can read, without line ends.

    The file ``-`` is standard input: a line that is piped in, or typed.
    """
    if str(path) == "-":
        typed = prompt(f"{option}: ", f"{option} -: standard input is empty")
        return Secret(typed.reveal().strip())
    content = read_private(path, _FILE_BYTES)
    if content is None:
        raise ConfigError(f"{option}: file {path} not found")
    return Secret(content.reveal().decode(errors="replace").strip())


def read_pin(command: str, pin: str, file: Path | None) -> Secret[str] | None:
    """Return the PIN of ``--pin`` or ``--pin-file``; None if neither was given.

    ``--pin -`` asks the user, or reads a line of standard input.
    """
    if file is not None:
        if pin:
            raise ConfigError("--pin and --pin-file exclude each other; give only one")
        return read_secret_file(file, "--pin-file")
    if pin == "-":
        typed = prompt("PIN: ", "no PIN; type it when asked, or pipe it in")
        return Secret(typed.reveal().strip())
    if pin:
        warn_of_process_list(command, "PIN", "use --pin - or --pin-file")
    return Secret(pin) if pin else None


def warn_of_process_list(command: str, what: str, remedy: str) -> None:
    """Tell the user that a secret in the command line is no secret on this machine."""
    text = f"other users can see the {what} in the process list, and your shell stores"
    typer.echo(f"ringleader {command}: {text} it; next time {remedy}", err=True)


def _piped() -> Secret[str]:
    """Read the next line of standard input without waiting for end-of-file."""
    descriptor = sys.stdin.fileno()
    deadline = Deadline.after(_PIPE_S)
    found = b""
    while len(found) < _LINE_BYTES and _is_readable(descriptor, deadline.left_s()):
        byte = os.read(descriptor, 1)  # what follows the line is the next one's
        if byte in (b"", b"\n"):
            break
        found += byte
    return Secret(found.decode(errors="replace"))


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    if sys.platform == "win32":  # select supports only sockets there; read blocks
        return True
    return bool(select.select([descriptor], [], [], timeout_s)[0])
