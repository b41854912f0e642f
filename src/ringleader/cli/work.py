"""``ringleader work``: train for a server somewhere on the internet."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ringleader import settings
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.terminal import exit_on_error, is_interactive, prompt
from ringleader.cli.units import format_bytes, format_seconds
from ringleader.errors import ConfigError
from ringleader.identity.secret_value import Secret

if TYPE_CHECKING:  # torch takes a second to import; --help shall not
    from ringleader.paramserver.protocol.messages import JoinAnswer
    from ringleader.paramserver.worker.join import WorkerSettings
    from ringleader.paramserver.worker.observer import Observer
    from ringleader.paramserver.worker.observer import Progress as Stand
    from ringleader.paramserver.worker.server_address import ServerAddress
    from ringleader.paramserver.worker.worker import Worker

_LINE_EVERY_S = 10.0
"""Between two lines of a log. A screen shows every step."""


def work(  # noqa: PLR0913 - one argument per flag
    link: Annotated[
        str | None, typer.Argument(help="What 'ringleader serve' shows.")
    ] = None,
    pin: Annotated[
        str | None, typer.Option(help="If you have an address and a PIN, not a link.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Another link to the same server; tried in turn."),
    ] = None,
    server_file: Annotated[
        Path | None,
        typer.Option(help="A file with the link, read again when it is out of reach."),
    ] = None,
    task: Annotated[
        str, typer.Option(help="chars:TEXTFILE, images:DIRECTORY or a .py file.")
    ] = "",
    name: Annotated[str, typer.Option(help="For the server's status page.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="Of the CPU; 0: as many as torch takes.")
    ] = 0,
    codec: Annotated[
        str, typer.Option(help="Of updates: none bf16 fp16 int8 onebit topk:0.01.")
    ] = "",
    weights_codec: Annotated[
        str, typer.Option(help="Of weights: none bf16 fp16.")
    ] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="The summary as JSON on standard output.")
    ] = False,
) -> None:
    """Compute for a training server, until it is done or Ctrl-C."""
    with exit_on_error("work"):
        links = [*([link] if link else []), *(server or [])]
        if not links and server_file is None:
            links = [_asked("Link: ", "which server? give its link").reveal()]
        from ringleader.paramserver.worker.server_address import ServerAddress

        address = ServerAddress.from_links(links, server_file)
        from ringleader.paramserver.worker.join import WorkerSettings  # torch, slow

        wanted = WorkerSettings(
            name=name or settings.node_name() or socket.gethostname(),
            task=task,
            device=device,
            codec=codec,
            weights_codec=weights_codec,
            pin=Secret(pin) if pin else None,
            ask_pin=_ask_pin if is_interactive() else None,
        )
        _set_threads(threads)
        with exit_on_sigterm():
            _until_done(wanted, address, as_json=as_json)


def _worker(
    wanted: WorkerSettings, address: ServerAddress, observer: Observer
) -> Worker:
    from ringleader.paramserver.worker.worker import Worker

    if address.is_plaintext:
        observer.noted(
            "this address is plain http: whoever sits on the way can read and change "
            "everything; use the https link, unless it leads into a tunnel of yours"
        )
    return Worker.open(wanted, address, observer)


def _until_done(
    wanted: WorkerSettings, address: ServerAddress, *, as_json: bool
) -> None:
    """Work, and say what came of it, however it ended."""
    worker, is_done = None, False
    try:
        with _screen() as observer:
            worker = _worker(wanted, address, observer)
            try:
                worker.run()
                is_done = True
            finally:
                worker.close()
    except KeyboardInterrupt:
        if worker is None or not worker.progress().rounds:
            typer.echo("Left before the server let this worker in.", err=True)
        raise
    finally:  # the bar is gone now
        if worker is not None:
            _summarize(worker, is_done=is_done, as_json=as_json)


def _summarize(worker: Worker, *, is_done: bool, as_json: bool) -> None:
    stand = worker.progress()
    if as_json:
        facts = {
            "is_finished": is_done,
            "version": stand.version,
            "updates": stand.counted,
            "dropped": stand.dropped,
            "samples": stand.samples,
            "loss": stand.loss if stand.counted else None,
            "sent_bytes": stand.sent_bytes,
            "received_bytes": stand.received_bytes,
            "seconds": stand.seconds,
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    if not stand.rounds:
        return  # it never got in, and we said why
    loss = f", loss {stand.loss:.4f}" if stand.counted else ""
    up, down = format_bytes(stand.sent_bytes), format_bytes(stand.received_bytes)
    typer.echo(
        f"{'Finished' if is_done else 'Left'} at version {stand.version} of "
        f"{stand.rounds}{loss}: {stand.counted} updates, {stand.samples} samples, "
        f"{up} sent, {down} received, {format_seconds(stand.seconds)}."
    )


def _set_threads(threads: int) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def _asked(question: str, otherwise: str) -> Secret[str]:
    if not is_interactive():
        raise ConfigError(otherwise)
    return prompt(question, otherwise)


def _ask_pin() -> Secret[str]:
    return Secret(_asked("PIN: ", "no PIN was typed").reveal().strip())


class _Lines:
    """A log for whoever looks later: a line now and then."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._is_waiting = False

    def joined(self, terms: JoinAnswer, device: str) -> None:
        """Say with whom and on what."""
        self.noted(
            f"joined as {terms.worker}: task {terms.task}, version {terms.version} of "
            f"{terms.rounds}, {terms.mode} mode, on {device}"
        )

    def stepped(self, progress: Stand) -> None:
        """A line if the last one is old."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _LINE_EVERY_S
            self.noted(
                f"version {progress.version} of {progress.rounds}, {_say(progress)}"
            )

    def waiting(self, reason: str, pause_s: float) -> None:
        """The first failure of a row, and a long one's."""
        if not self._is_waiting:
            self.noted(f"{reason}; trying again until it works")
        self._is_waiting = True

    def reconnected(self) -> None:
        """The end of a row of failures."""
        self._is_waiting = False
        self.noted("the server answers again")

    def noted(self, text: str) -> None:
        """On standard error, at once."""
        typer.echo(text, err=True)


class _Bar(_Lines):
    """A progress bar, with lines above it for what is worth one."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress
        self._bar = progress.add_task("joining", total=None, say="")

    def joined(self, terms: JoinAnswer, device: str) -> None:
        """Show how far it is. Until now the screen belonged to questions."""
        super().joined(terms, device)
        self._progress.start()
        self._show(terms.version, terms.rounds, "waiting for work")

    def stepped(self, progress: Stand) -> None:
        """Every step."""
        self._show(progress.version, progress.rounds, _say(progress))

    def waiting(self, reason: str, pause_s: float) -> None:
        """Each pause, in the bar."""
        super().waiting(reason, pause_s)
        self._progress.update(self._bar, say=f"next try in {pause_s:.0f} s")

    def noted(self, text: str) -> None:
        """Above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def _show(self, version: int, rounds: int, say: str) -> None:
        text = f"version {version}/{rounds}"
        self._progress.update(
            self._bar, completed=version, total=rounds, description=text, say=say
        )


@contextmanager
def _screen() -> Iterator[Observer]:
    """Where progress goes: a bar on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[say]}"),
    )
    progress = Progress(*columns, console=Console(stderr=True))
    try:
        yield _Bar(progress)
    finally:
        progress.stop()


def _say(stand: Stand) -> str:
    loss = f"loss {stand.loss:.4f}, " if stand.counted else ""
    left = "" if stand.left_s is None else f", {stand.left_s:.0f} s left"
    up, down = format_bytes(stand.sent_bytes), format_bytes(stand.received_bytes)
    return f"{loss}{up} up, {down} down{left}"
