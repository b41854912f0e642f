"""``ringleader join``: enters a cluster with its phrase or with a PIN."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import (
    exit_on_error,
    is_interactive,
    prompt,
    read_secret_file,
    warn_of_process_list,
)
from ringleader.errors import (
    ConfigError,
    PeerUnreachable,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.ids import short

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.identity.cluster_secret import ClusterSecret
    from ringleader.identity.known_nodes import KnownNode
    from ringleader.identity.node_key import NodeKey
    from ringleader.identity.secret_value import Secret

_SEARCH_S = 10.0
"""Discovery nearly always answers within three seconds."""
_ENTRIES = 3
"""PINs that a user may type. Each gives a false host one guess."""
Address = tuple[str, int]


def join(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PHRASE]",
            help="The phrase. Leave it out to be asked: other users can see commands.",
        ),
    ] = None,
    phrase_file: Annotated[
        Path | None,
        typer.Option(help="Read the phrase from this file; -: standard input."),
    ] = None,
    pin: Annotated[
        bool,
        typer.Option("--pin", help="Join with the PIN that 'ringleader invite' shows."),
    ] = False,
    at: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the inviting machine, if it is not found.",
        ),
    ] = "",
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Leave the cluster this machine is in, and join this one."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
) -> None:
    """Enter a cluster with the phrase that 'ringleader init' showed, or with a PIN.

    For a PIN, run 'ringleader invite' on a machine of the cluster and
    'ringleader join --pin' here. Then 'ringleader run' finds the others.
    """
    from ringleader.identity import cluster_store, join_phrase
    from ringleader.identity.cluster_secret import ClusterSecret
    from ringleader.identity.node_key import first_key
    from ringleader.identity.storage.home import Home

    with exit_on_error("join"):
        if pin and (words or phrase_file):
            raise ConfigError("--pin: give either the phrase or a PIN, not both")
        if at and not pin:
            raise ConfigError("--at: is the address for joining with a PIN; add --pin")
        home = Home(settings.home_directory())
        if pin:
            if not force:
                cluster_store.check_not_joined(home)
            key = first_key(home)
            cluster, host = _join_by_pin(key, at)
        else:
            typed = _phrase(words, phrase_file)
            cluster = ClusterSecret.from_phrase(join_phrase.parse(typed))
            key, host = first_key(home), None
        is_new = cluster_store.store_cluster(home, cluster, met=host, replace=force)
    _report(cluster, key, host, is_new=is_new, as_json=as_json)


def _report(
    cluster: ClusterSecret,
    key: NodeKey,
    host: KnownNode | None,
    *,
    is_new: bool,
    as_json: bool,
) -> None:
    if as_json:
        found = {"cluster": cluster.name, "tag": cluster.tag, "node": key.node_id}
        through = {"node": host.node, "name": host.name} if host else None
        more = {"through": through, "is_new": is_new}
        typer.echo(json.dumps({**found, **more}, indent=1))
        return
    verb = "Joined" if is_new else "Already in"
    through_text = f" through {host}" if host else ""
    typer.echo(f"{verb} cluster {cluster.title}{through_text}.")
    typer.echo(f"This machine is node {short(key.node_id)}.", nl=False)
    typer.echo(" 'ringleader status' shows the other nodes.")
    if host is None and is_new:
        typer.echo(f"Check: 'ringleader init' showed the same tag {cluster.tag}.")


def _phrase(words: list[str] | None, file: Path | None) -> Secret[str]:
    from ringleader.identity.secret_value import Secret

    if words:
        warn_of_process_list("join", "phrase", "leave it out and type it when asked")
        return Secret(" ".join(words))
    if file is not None:
        return read_secret_file(file, "--phrase-file")
    nothing = "no phrase; type it when asked, pipe it in, or use --phrase-file"
    return prompt("Phrase: ", nothing)


def _join_by_pin(key: NodeKey, at: str) -> tuple[ClusterSecret, KnownNode]:
    from ringleader.transport.tcp_socket import parse_address

    addresses = [parse_address(at)] if at else _find_inviting_machine()
    typer.echo(f"A machine at {addresses[0][0]} is pairing.", err=True)
    for entry_number in range(1, _ENTRIES + 1):
        pin = _ask_pin()
        try:
            return _pair(addresses, key, pin)
        except PeerUntrusted as refused:
            is_last = entry_number == _ENTRIES or not is_interactive()
            if is_last or "PIN" not in refused.text:
                raise
            typer.echo(f"{refused.text[0].upper()}{refused.text[1:]}.", err=True)
    raise AssertionError("the last entry returns or raises")


def _find_inviting_machine() -> list[Address]:
    """Return the addresses of the one machine that invites."""
    from ringleader.discovery.pairing_announcement import find_pairing_hosts
    from ringleader.topology.interfaces import usable_interfaces

    typer.echo("Looking for a machine that invites ...", err=True)
    chosen, _ = usable_interfaces(settings.interfaces())
    try:
        addresses = find_pairing_hosts(_SEARCH_S, chosen)
    except RingleaderError as exc:
        text = f"cannot search this network ({exc}); pass --at HOST:PORT"
        raise PeerUnreachable("pairing", text) from exc
    if not addresses:
        text = f"no machine on this network invites (looked for {_SEARCH_S:g} s)"
        remedy = "run 'ringleader invite' on a machine of the cluster"
        raise PeerUnreachable(
            "pairing", f"{text}; {remedy}, or pass the --at HOST:PORT that it prints"
        )
    if len({port for _, port in addresses}) > 1:
        seen = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise ConfigError(f"several machines invite; choose one with --at: {seen}")
    return addresses


def _ask_pin() -> Secret[str]:
    from ringleader.identity.secret_value import Secret

    nothing = "no PIN; type it when asked, or pipe it in"
    typed = prompt("Type the PIN it shows: ", nothing)
    pin = Secret("".join(typed.reveal().split()).replace("-", ""))
    is_pin = (
        len(pin.reveal()) == 6 and pin.reveal().isascii() and pin.reveal().isdigit()
    )
    if not is_pin:
        raise ConfigError("a PIN has six digits, as in 482 913")
    return pin


def _pair(
    addresses: list[Address], key: NodeKey, pin: Secret[str]
) -> tuple[ClusterSecret, KnownNode]:
    """Pair at the first address that can be reached."""
    from ringleader.identity.pairing.join_client import join_at

    name = settings.node_name() or socket.gethostname()
    for address in addresses:
        try:
            welcome = join_at(address, key, name, pin)
        except PeerUnreachable:
            if address == addresses[-1]:
                raise
        else:
            return welcome.cluster, welcome.host
    raise AssertionError("there is at least one address")
