"""How ranks enter a star: from a list of peers, or through a torch store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from torch._C._distributed_c10d import Store

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups.handle import view_hash
from ringleader.groups.plaintext_check import is_own, require_this_machine
from ringleader.groups.star_connector import (
    StarConnector,
    in_new_star,
    in_star_of_world,
)
from ringleader.groups.store_rendezvous import (
    check_alike,
    look_up,
    own_address,
    publish,
)
from ringleader.transport.dialer import Endpoint
from ringleader.transport.star.member import Member
from ringleader.transport.star.star import Star
from ringleader.transport.tcp_socket import Address, parse_address
from ringleader.transport.tls_credentials import TlsCredentials

if TYPE_CHECKING:
    from ringleader.identity.certificates.pem import PemCredentials


class StarOptions(Protocol):
    """What a star needs of ``formation.Options``."""

    @property
    def deadline(self) -> Deadline: ...
    @property
    def addresses(self) -> tuple[str, ...]: ...
    @property
    def credentials(self) -> TlsCredentials | None: ...
    @property
    def plaintext(self) -> bool: ...
    @property
    def ports(self) -> range: ...
    @property
    def world_ranks(self) -> tuple[int, ...]: ...


def meet_peers(
    peers: Sequence[str], rank: int, options: StarOptions
) -> tuple[StarConnector, str]:
    """Return the connector and the name of a group.

    The first of ``peers`` is the address of rank 0; the others are names only.
    """
    if not 0 <= rank < len(peers):
        raise ConfigError(f"rank {rank} is not in a list of {len(peers)} peers")
    name = "peers:" + ",".join(peers)
    star = _enter([parse_address(peers[0])], rank, len(peers), name, options)
    return in_new_star(star), name


def meet(
    store: Store, rank: int, keys: Sequence[str], options: StarOptions
) -> StarConnector:
    """Enter the star of rank 0, whose address is in the store.

    A group of torch's world uses the star of that world: its workers reach only that.
    """
    world = options.world_ranks
    if world and (connector := in_star_of_world(world, rank)):
        return connector
    size, name = len(keys), keys[0]
    if rank == 0:
        hosts, node = options.addresses or (own_address(store),), None
        if options.credentials is not None:
            node = options.credentials.node
            hosts = options.credentials.announceable(hosts)
        star = _enter([("", 0)], rank, size, name, options)
        try:
            publish(store, keys[0], hosts, star.address[1], node)
        except BaseException:
            star.close()
            raise
    else:
        root = look_up(store, keys[0], 0, options.deadline)
        check_alike([root], encrypts=options.credentials is not None)
        star = _enter(root.addresses, rank, size, name, options)
    return in_new_star(star, world[rank] if world else None)


def _enter(
    root: Sequence[Address], rank: int, size: int, name: str, options: StarOptions
) -> Star:
    """Listen as rank 0 at ``root``, or dial it there; port 0 is one of the options."""
    credentials = options.credentials
    namespace = bytes(16) if credentials is None else credentials.namespace
    member = Member(world=view_hash(name), rank=rank, size=size, namespace=namespace)
    is_open = credentials is not None or options.plaintext
    if rank != 0:
        if not is_open:
            require_this_machine([Endpoint(tuple(root))])
        targets = [(address, _pem(credentials, address[0])) for address in root]
        return Star.dial(member, targets, options.deadline)
    host, port = root[0]
    ports = range(port, port + 1) if port else options.ports
    return Star.listen(
        member,
        (host, ports),
        _pem(credentials, host),
        options.deadline,
        accepts=None if is_open else is_own,
    )


def _pem(credentials: TlsCredentials | None, host: str) -> PemCredentials | None:
    """Return the certificates to listen with, or to dial ``host``."""
    if credentials is None:
        return None
    pem = credentials.pem()
    name = pem.host_name or credentials.server_name(host=host)
    return replace(pem, host_name=name)
