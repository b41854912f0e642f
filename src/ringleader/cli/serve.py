"""``ringleader serve``: run a parameter server for workers on the internet."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader.cli.extras import require_extra
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.own_address import own_address
from ringleader.cli.terminal import exit_on_error, is_interactive, prompt, read_pin
from ringleader.cli.units import format_bytes, format_seconds
from ringleader.errors import ConfigError

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.identity.server_certificate import ServerCertificate
    from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
    from ringleader.paramserver.server.plan import Plan
    from ringleader.paramserver.server.run import Run, ServerOptions

_Flag = typer.Option
_TASKS = "digits, mnist, chars:FILE, images:DIR or a .py file"


def serve(  # noqa: PLR0913 # one argument per flag
    task: Annotated[
        str,
        typer.Argument(help=f"{_TASKS}."),
    ] = "",
    workers: Annotated[int, _Flag(help="Workers that share a round.", min=0)] = 0,
    rounds: Annotated[int, _Flag(help="Rounds to train.", min=0)] = 0,
    pin: Annotated[
        str,
        _Flag(
            help="Also accept workers that know this PIN; -: ask, or read standard "
            "input, because other users can see commands."
        ),
    ] = "",
    pin_file: Annotated[Path | None, _Flag(help="Read the PIN from this file.")] = None,
    host: Annotated[str, _Flag(help="Address to listen on.")] = "",
    port: Annotated[int, _Flag(help="Port to listen on; 0: any free port.")] = 8000,
    url: Annotated[
        str, _Flag(help="Address of this server for workers, such as a tunnel's.")
    ] = "",
    http: Annotated[
        bool, _Flag("--http", help="Use plain HTTP, behind a tunnel or proxy.")
    ] = False,
    tls_cert: Annotated[
        Path | None,
        _Flag(
            metavar="FILE",
            help="Your own certificate (PEM) instead of one made here; read again when "
            "it changes.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None, _Flag(metavar="FILE", help="Key of --tls-cert.")
    ] = None,
    is_open: Annotated[
        bool, _Flag("--open", help="Accept every worker, on 127.0.0.1 only.")
    ] = False,
    out: Annotated[
        Path | None, _Flag(help="Directory for checkpoints; a run in it is resumed.")
    ] = None,
    mode: Annotated[
        str,
        _Flag(
            help="Equal rounds (bulk), long ones of local steps (rounds), or single "
            "updates: bounded or async."
        ),
    ] = "bulk",
    steps: Annotated[
        str,
        _Flag(
            help="Steps of a worker between two updates; auto: so many that exchanges "
            "take 5 % of the time. Default: 50 in rounds mode, else 1."
        ),
    ] = "",
    staleness: Annotated[
        int, _Flag(help="In bounded mode, how many versions an update may be behind.")
    ] = 8,
    quorum: Annotated[
        int,
        _Flag(
            help="Updates that suffice after the timeout (0: more than half), or after "
            "the grace of rounds mode (0: half)."
        ),
    ] = 0,
    grace: Annotated[
        float,
        _Flag(help="In rounds mode, seconds that a quorum waits for other workers."),
    ] = 30.0,
    round_timeout: Annotated[
        float, _Flag(help="Seconds that a round waits for all workers.")
    ] = 120.0,
    elastic: Annotated[
        bool, _Flag("--elastic", help="Share each round among all workers present.")
    ] = False,
    scale_rate: Annotated[
        bool, _Flag(help="Multiply the learning rate by the workers of a round.")
    ] = True,
    warmup: Annotated[
        int, _Flag(help="Rounds until the rate reaches its full value.")
    ] = 5,
    aggregate: Annotated[
        str,
        _Flag(help="Combine updates by mean, or for strangers by trimmed or median."),
    ] = "mean",
    clip: Annotated[
        float, _Flag(help="Scale updates down to this multiple of the median norm.")
    ] = 0.0,
    max_move: Annotated[
        float, _Flag(help="Refuse updates that move the weights by more norms; 0: any.")
    ] = 10.0,
    outer: Annotated[
        str,
        _Flag(
            help="How to apply local steps: average, sgd, nesterov or adam, also with "
            "rate and momentum (nesterov:1:0.5); default: average, in rounds mode what "
            "suits it."
        ),
    ] = "",
    batch_size: Annotated[
        int, _Flag(help="Samples per step of a worker; 0: the task's choice.")
    ] = 0,
    seed: Annotated[int, _Flag(help="Seed for the order of samples.")] = 0,
    codec: Annotated[
        str,
        _Flag(
            help="Codec of updates: none, bf16, fp16, int8, onebit, topk:0.01 or "
            "sparseloco; default: none, int8 in rounds mode."
        ),
    ] = "",
    weights_codec: Annotated[
        str, _Flag(help="Codec of weights: none, bf16 or fp16.")
    ] = "none",
    checkpoint_every: Annotated[
        int, _Flag(help="Rounds between two checkpoints.")
    ] = 10,
) -> None:
    """Serve a training run to workers on the internet."""
    with exit_on_error("serve"):
        require_extra("internet")
        task = task or _ask(f"Task ({_TASKS}): ", f"TASK is missing: {_TASKS}")
        workers = workers or _ask_number("How many workers? ", "--workers")
        rounds = rounds or _ask_number("How many rounds? ", "--rounds")
        from ringleader.identity.server_certificate import ServerCertificate
        from ringleader.paramserver.server.aggregation import Aggregation
        from ringleader.paramserver.server.http.http_server import ListenAddress
        from ringleader.paramserver.server.plan import LOCAL_STEPS, Plan
        from ringleader.paramserver.server.run import ServerOptions

        plan = Plan(
            rounds=rounds,
            workers=workers,
            mode=mode,  # type: ignore[arg-type] # checked by the plan
            steps=_steps(steps) or (LOCAL_STEPS if mode == "rounds" else 1),
            is_auto=steps == "auto",
            staleness=staleness,
            quorum=quorum,
            grace_s=grace,
            round_timeout_s=round_timeout,
            elastic=elastic,
            scale_rate=scale_rate,
            warmup=warmup,
            aggregation=Aggregation(aggregate, clip),  # type: ignore[arg-type]
        )
        options = ServerOptions(
            out=out or Path(f"ringleader-{Path(task.partition(':')[0]).stem}"),
            pin=read_pin("serve", pin, pin_file),
            is_open=is_open,
            batch_size=batch_size or None,
            seed=seed,
            codec=codec,
            weights_codec=weights_codec,
            checkpoint_every=checkpoint_every,
            outer=outer,
            max_move=max_move,
        )
        here = "127.0.0.1" if http or is_open else "0.0.0.0"
        address = ListenAddress(host=host or here, port=port)
        address.check(is_open=is_open)
        own = ServerCertificate.load(tls_cert, tls_key)
        if own is not None and http:
            raise ConfigError("--http and --tls-cert exclude each other; give one")
        with exit_on_sigterm():
            _serve(task, plan, options, _Endpoint(address, url.rstrip("/"), http, own))


def _steps(text: str) -> int:
    """Return the number of steps; 0: what suits the mode."""
    if text in ("", "auto"):
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"--steps {text}: use a number or auto")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The address that the server listens on, and the one that workers use."""

    address: ListenAddress
    url: str
    is_http: bool
    certificate: ServerCertificate | None

    def url_for_workers(self, port: int) -> str:
        """Return the address that workers use."""
        if self.url:
            return self.url
        host = self.address.host
        host = own_address() if host in ("0.0.0.0", "::") else host
        host = f"[{host}]" if ":" in host else host
        return f"{'http' if self.is_http else 'https'}://{host}:{port}"


def _serve(name: str, plan: Plan, options: ServerOptions, endpoint: _Endpoint) -> None:
    import torch

    from ringleader.cli.serve_announcement import announce
    from ringleader.cli.serve_progress import ServeProgress
    from ringleader.paramserver.server.http.http_server import HttpServer
    from ringleader.paramserver.server.run import open_run
    from ringleader.paramserver.tasks.loading import load_task

    torch.set_num_threads(1)  # leaves the other cores to workers on this machine
    run = open_run(load_task(name), plan, options)
    try:
        listener = endpoint.address.listen()
        context = None if endpoint.is_http else run.tls(endpoint.certificate)
        where = endpoint.url_for_workers(listener.getsockname()[1])
        is_pinned = not endpoint.is_http and endpoint.certificate is None
        announce(run, where, is_pinned=is_pinned)
        serving = HttpServer(run.app, listener, context)
        serving.on_version = ServeProgress(run.app.training.scheduler).show
        _serve_until_done(run, serving)
    finally:
        run.close()


def _serve_until_done(run: Run, serving: HttpServer) -> None:
    training = run.app.training
    with suppress(KeyboardInterrupt):
        serving.run()
    done = training.scheduler.is_finished
    summary = training.summary()
    size = format_bytes(summary.bytes_received + summary.bytes_sent)
    loss = "" if summary.loss is None else f", loss {summary.loss:.4f}"
    typer.echo(
        f"{'Finished' if done else 'Stopped'} at version {summary.version} of "
        f"{summary.rounds}{loss}: {summary.updates} updates of {summary.workers} "
        f"workers, {size}, {format_seconds(summary.seconds)}."
    )
    out = training.store.out
    if done:
        typer.echo(f"Weights: {out / 'weights.safetensors'}")
        return
    typer.echo("Run the same command again to resume.")
    raise typer.Exit(130)


def _ask(question: str, missing: str) -> str:
    """Ask the user for a missing argument; ConfigError if nobody can be asked."""
    if not is_interactive():
        raise ConfigError(missing)
    return prompt(question, missing).reveal().strip()


def _ask_number(question: str, flag: str) -> int:
    text = _ask(question, f"{flag} is missing")
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{flag}: {text!r} must be a whole number above 0")
    return int(text)
