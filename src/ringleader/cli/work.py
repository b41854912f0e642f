"""``ringleader work``: compute updates for a parameter server."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.extras import require_extra
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.terminal import (
    exit_on_error,
    is_interactive,
    prompt,
    read_pin,
    warn_of_process_list,
)
from ringleader.cli.units import format_bytes, format_seconds
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # torch takes a second to import; --help shall not
    from ringleader.identity.secret_value import Secret
    from ringleader.paramserver.worker.join import WorkerSettings
    from ringleader.paramserver.worker.observer import Observer
    from ringleader.paramserver.worker.server_address import ServerAddress
    from ringleader.paramserver.worker.worker import Worker


def work(  # noqa: PLR0913 - one argument per flag
    link: Annotated[
        str | None,
        typer.Argument(
            help="The link that 'ringleader serve' prints. Leave it out to be asked, "
            "or to pipe it in: other users can see commands."
        ),
    ] = None,
    pin: Annotated[
        str,
        typer.Option(
            help="PIN to join with, if LINK is only an address; -: ask, or read "
            "standard input."
        ),
    ] = "",
    pin_file: Annotated[
        Path | None, typer.Option(help="Read the PIN from this file.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Further links to the same server, tried in turn."),
    ] = None,
    server_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the link; read again if the server is unreachable."
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            help="Your copy of the server's .py file; other tasks, and their data, "
            "come from the server, or from mnist:DIR, chars:FILE or images:DIR here."
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Name on the server's status page.")] = "",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="CPU threads; 0: torch's default.")
    ] = 0,
    codec: Annotated[
        str,
        typer.Option(help="Codec of updates: none bf16 fp16 int8 onebit topk:0.01."),
    ] = "",
    weights_codec: Annotated[
        str, typer.Option(help="Codec of weights: none bf16 fp16.")
    ] = "",
    max_batch_size: Annotated[
        int,
        typer.Option(min=0, help="Largest batch to accept; 0: 64 times the task's."),
    ] = 0,
    max_data: Annotated[
        float, typer.Option(min=0, help="Most data to get from the server, in GB.")
    ] = 10.0,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="Leave after so many minutes; 0: at the end."),
    ] = 0.0,
    updates: Annotated[
        int,
        typer.Option(min=0, help="Leave after so many updates; 0: at the end."),
    ] = 0,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Be one worker together with the other machines of the cluster: start "
            "it by ringleader run --survive -m ringleader work LINK --cluster.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON.")
    ] = False,
) -> None:
    """Compute updates for a server until training is over, a limit, or Ctrl-C."""
    with exit_on_error("work"):
        require_extra("internet")
        links = [*([link] if link else []), *(server or [])]
        if not links and server_file is None:
            missing = "LINK is missing: give the link that 'ringleader serve' prints"
            links = [prompt("Link: ", missing).reveal().strip()]
        from ringleader.paramserver.worker.server_address import ServerAddress

        address = ServerAddress.from_links(links, server_file)
        if (link or server) and address.link.code is not None:
            remedy = "leave it out and type it when asked, or use --server-file"
            warn_of_process_list("work", "link", remedy)
        from ringleader.paramserver.worker.join import WorkerSettings  # torch, slow

        wanted = WorkerSettings(
            name=name or settings.node_name() or socket.gethostname(),
            task=task,
            device=device,
            codec=codec,
            weights_codec=weights_codec,
            pin=read_pin("work", pin, pin_file),
            ask_pin=_ask_pin if is_interactive() else None,
            max_batch_size=max_batch_size,
            max_data_bytes=int(max_data * 1e9),
            most_seconds=60 * minutes,
            most_updates=updates,
        )
        if cluster and (minutes or updates):
            text = "--minutes and --updates are for a worker of one machine"
            raise ConfigError(f"{text}; end a cluster by Ctrl-C")
        _set_threads(threads)
        with exit_on_sigterm():
            _until_done(wanted, address, is_cluster=cluster, as_json=as_json)


def _worker(
    wanted: WorkerSettings,
    address: ServerAddress,
    observer: Observer,
    *,
    is_cluster: bool,
) -> Worker:
    from ringleader.paramserver.worker.worker import Worker

    if address.is_plaintext:
        observer.noted(
            "this address is plain http: everybody on the way can read and change all "
            "traffic; use the https link, unless it leads into a tunnel of yours"
        )
    if is_cluster:
        from ringleader.paramserver.worker.cluster_worker import ClusterWorker

        return ClusterWorker.open(wanted, address, observer)
    return Worker.open(wanted, address, observer)


def _until_done(
    wanted: WorkerSettings, address: ServerAddress, *, is_cluster: bool, as_json: bool
) -> None:
    """Run a worker, and print its summary however it ended."""
    from ringleader.cli.work_progress import observe

    worker, is_done = None, False
    try:
        with observe() as observer:
            worker = _worker(wanted, address, observer, is_cluster=is_cluster)
            try:
                is_done = worker.run()
            finally:
                worker.close()
    except KeyboardInterrupt:
        if worker is None or not worker.progress().rounds:
            typer.echo("Stopped before the server admitted this worker.", err=True)
        raise
    finally:  # the progress bar is closed
        if worker is not None:
            _summarize(worker, is_done=is_done, as_json=as_json)


def _summarize(worker: Worker, *, is_done: bool, as_json: bool) -> None:
    progress = worker.progress()
    if as_json:
        facts = {
            "is_finished": is_done,
            "version": progress.version,
            "updates": progress.counted,
            "dropped": progress.dropped,
            "samples": progress.samples,
            "loss": progress.loss if progress.counted else None,
            "sent_bytes": progress.sent_bytes,
            "received_bytes": progress.received_bytes,
            "seconds": progress.seconds,
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    if not progress.rounds:
        return  # it never joined, and the reason was printed
    loss = f", loss {progress.loss:.4f}" if progress.counted else ""
    up, down = format_bytes(progress.sent_bytes), format_bytes(progress.received_bytes)
    typer.echo(
        f"{'Finished' if is_done else 'Left'} at version {progress.version} of "
        f"{progress.rounds}{loss}: {progress.counted} updates, "
        f"{progress.samples} samples, {up} sent, {down} received, "
        f"{format_seconds(progress.seconds)}."
    )


def _set_threads(threads: int) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def _ask_pin() -> Secret[str]:
    from ringleader.identity.secret_value import Secret

    return Secret(prompt("PIN: ", "no PIN was typed").reveal().strip())
