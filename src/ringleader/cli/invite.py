"""``ringleader invite``: shows a PIN with which one more machine can join."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.interrupt import exit_on_sigterm
from ringleader.cli.terminal import exit_on_error
from ringleader.errors import ConfigError
from ringleader.identity.pairing.attempt_window import WINDOW_S, InvitationOutcome

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.identity.cluster_secret import ClusterSecret
    from ringleader.identity.known_nodes import KnownNode
    from ringleader.identity.pairing.invitation import InvitationEvent
    from ringleader.identity.storage.home import Home

    OnEvent = Callable[[InvitationEvent], None]

_MOST_S = 3600

ENDINGS = {
    InvitationOutcome.EXHAUSTED: (
        "Three failed attempts. Pairing closed; someone may be guessing. "
        "Use the phrase or run invite again."
    ),
    InvitationOutcome.EXPIRED: "No machine joined in time. Pairing closed.",
}


def invite(
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Listen on this port; 0: any free port."),
    ] = 0,
    seconds: Annotated[
        int, typer.Option(min=1, max=_MOST_S, help="How many seconds the PIN is valid.")
    ] = int(WINDOW_S),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Show a PIN with which one more machine can join the cluster.

    Run 'ringleader join --pin' on that machine and type the PIN there.
    Exits with 0 when it has joined, with 1 otherwise.
    """
    from ringleader.identity import cluster_secret
    from ringleader.identity.storage.home import Home

    with exit_on_error("invite"), exit_on_sigterm():
        home = Home(settings.home_directory())
        cluster = cluster_secret.load(home)
        if cluster is None:
            raise ConfigError(
                "this machine is in no cluster; run 'ringleader init' or 'join' first"
            )
        outcome = _serve(home, cluster, port, seconds, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"outcome": outcome.value}))
    elif outcome in ENDINGS:
        typer.echo(ENDINGS[outcome])
    if outcome is not InvitationOutcome.JOINED:
        raise typer.Exit(1)


def _serve(
    home: Home, cluster: ClusterSecret, port: int, seconds: int, *, as_json: bool
) -> InvitationOutcome:
    from ringleader.discovery.pairing_announcement import announce_pairing
    from ringleader.discovery.record import addresses_to_announce
    from ringleader.identity import known_nodes
    from ringleader.identity.node_key import first_key
    from ringleader.identity.pairing.attempt_window import AttemptWindow
    from ringleader.identity.pairing.invitation import Invitation
    from ringleader.identity.pairing.join_client import new_pin
    from ringleader.identity.pairing.protocol import PairingHost
    from ringleader.topology.interfaces import usable_interfaces
    from ringleader.transport.listening_socket import listen

    key = first_key(home)
    name = settings.node_name() or socket.gethostname()
    chosen, _ = usable_interfaces(settings.interfaces())

    def new_run(address: str) -> PairingHost:
        return PairingHost(key, name, cluster, peer=address)

    def record(member: KnownNode) -> None:
        with home.writing() as change:
            known_nodes.remember(home, change, member)

    with listen("", port) as server:
        port = int(server.getsockname()[1])
        hosts = addresses_to_announce(chosen)
        addresses = [_format_address(host, port) for host in hosts]
        with announce_pairing(port, chosen) as trouble:
            _print_instructions(port, addresses, str(trouble or ""), as_json=as_json)
            window = AttemptWindow.open_at(time.monotonic(), new_pin, length_s=seconds)
            on_event = _print_json if as_json else _printer(seconds)
            return Invitation(server, window, new_run, record, on_event).serve()


def _format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _print_instructions(
    port: int, addresses: list[str], trouble: str, *, as_json: bool
) -> None:
    if as_json:
        found = {"port": port, "addresses": addresses, "discovery": trouble or None}
        typer.echo(json.dumps(found))
        return
    typer.echo("On the other machine run\n\n    ringleader join --pin\n")
    unknown = f"ADDRESS:{port} (an address of this machine)"
    address = addresses[0] if addresses else unknown
    typer.echo(f"If that does not find this machine, add --at {address}\n")
    if trouble:
        typer.echo(f"It will not find this machine by itself: {trouble}\n")


def _printer(seconds: int) -> OnEvent:
    from ringleader.identity.pairing.invitation import PinShown

    minutes = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds} seconds"

    def on_event(event: InvitationEvent) -> None:
        if isinstance(event, PinShown):
            digits = event.pin.reveal()
            pin, left = f"{digits[:3]} {digits[3:]}", event.attempts_left
            if not event.trouble:
                typer.echo(f"PIN {pin} - valid {minutes} - attempts left {left}")
                return
            trouble = event.trouble[0].upper() + event.trouble[1:]
            typer.echo(f"{trouble}. New PIN: {pin} - attempts left {left}")
        else:
            typer.echo(f"{event.member} joined. Pairing closed.")
            if not event.has_thanked:
                typer.echo(
                    "It did not confirm that it got everything; check its screen."
                )

    return on_event


def _print_json(event: InvitationEvent) -> None:
    from ringleader.identity.pairing.invitation import PinShown

    if isinstance(event, PinShown):
        found = {"pin": event.pin.reveal(), "attempts_left": event.attempts_left}
        typer.echo(json.dumps({**found, "trouble": event.trouble or None}))
    else:
        member = {"node": event.member.node, "name": event.member.name}
        typer.echo(json.dumps({"joined": member, "has_thanked": event.has_thanked}))
