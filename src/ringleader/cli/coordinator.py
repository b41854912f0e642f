"""``ringleader coordinator``: let workers find each other without multicast."""

from __future__ import annotations

import contextlib
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader.cli.extras import require_extra
from ringleader.cli.own_address import own_address
from ringleader.cli.terminal import exit_on_error
from ringleader.cli.tls_options import TlsCa, TlsCert, TlsKey, use_tls
from ringleader.settings import home_directory

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.identity.storage.home import Home
    from ringleader.settings.tls_files import TlsFiles

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.coordinator.grpc_tls import TlsSource
    from ringleader.coordinator.server.listen_address import ListenAddress
    from ringleader.coordinator.server.server import ServerOptions

STATE = "coordinator.sqlite"

_Flag = typer.Option


def coordinator(  # noqa: PLR0913 # one argument per flag
    listen: Annotated[
        str,
        _Flag(help="HOST:PORT to listen on; :PORT is every interface."),
    ] = "127.0.0.1:7070",
    heartbeat_timeout: Annotated[
        float, _Flag(help="Seconds without heartbeats after which a worker is evicted.")
    ] = 10.0,
    state: Annotated[
        Path | None,
        _Flag(help="SQLite file of the state; default: in ~/.ringleader."),
    ] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    plaintext: Annotated[
        bool, _Flag("--plaintext", help="Use no TLS, also on a routable address.")
    ] = False,
) -> None:
    """Let workers find each other by gRPC where multicast does not work."""
    import asyncio

    from ringleader.cli.refused_handshakes import refused_handshakes
    from ringleader.identity.storage.home import Home
    from ringleader.log_limit import LimitedText, limited_logs

    with exit_on_error("coordinator"), contextlib.ExitStack() as stack:
        require_extra("coordinator")
        from ringleader.coordinator.server.listen_address import ListenAddress

        home = Home(home_directory())
        address = ListenAddress.parse(listen)
        files = use_tls(tls_ca, tls_cert, tls_key, plaintext=plaintext)
        security = _security(files, home, address, is_plaintext=plaintext)
        if security.source is not None:
            stack.enter_context(refused_handshakes(_report))
        from ringleader.coordinator.server.server import ServerOptions

        options = ServerOptions(
            listen=address,
            heartbeat_timeout_s=heartbeat_timeout,
            state=state or home.path / STATE,
            tls=security.source,
        )
        stack.enter_context(limited_logs())
        stack.enter_context(contextlib.redirect_stderr(LimitedText(sys.stderr)))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(options, security))


@dataclass(frozen=True, slots=True)
class _Security:
    """How connections are protected, and what workers need for that."""

    source: TlsSource | None
    title: str
    flags: str
    """What a worker adds to its command."""


def _security(
    files: TlsFiles | None, home: Home, address: ListenAddress, *, is_plaintext: bool
) -> _Security:
    """Choose certificates: the user's, else the cluster's, else none on loopback."""
    from ringleader.identity import cluster_secret

    if files is not None:
        from ringleader.identity.certificates.rotation import RotatingPem

        flags = " --tls-ca CA --tls-cert CERT --tls-key KEY"
        source = RotatingPem.of(files, _report).current
        return _Security(source, f"TLS with {files.cert}", flags)
    cluster = None if is_plaintext else cluster_secret.load(home)
    if cluster is None:
        address.check_plaintext(is_allowed=is_plaintext)
        return _Security(None, "plaintext", " --plaintext")
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import NodeKey

    pem = Credentials.issue(cluster, NodeKey.ephemeral()).pem()
    return _Security(lambda: pem, f"TLS of cluster {cluster.title}", "")


async def _serve(options: ServerOptions, security: _Security) -> None:
    import asyncio

    from ringleader.coordinator.server.server import CoordinatorServer

    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises
            loop.add_signal_handler(number, end.set)
    server = CoordinatorServer(options, _report)
    try:
        await server.start()
        _announce(server.port, server.num_restored, options, security)
        await server.serve_until(end)
        typer.echo("Stopped. Workers keep training, and register again at a restart.")
    finally:
        await server.stop()


def _announce(
    port: int, num_restored: int, options: ServerOptions, security: _Security
) -> None:
    listen = options.listen
    typer.echo(f"Coordinator on {listen.with_port(port)} ({security.title}).")
    before = f"; {num_restored} workers were registered before" if num_restored else ""
    typer.echo(f"State: {options.state}{before}.")
    where = listen.for_workers(own_address(), port)
    typer.echo("Start the same command on each machine:\n")
    typer.echo(f"    ringleader run --coordinator {where}{security.flags} SCRIPT\n")


def _report(text: str) -> None:
    # Not to what replaces it while we serve: that drops text.
    typer.echo(f"ringleader coordinator: {text}", file=sys.__stderr__)
