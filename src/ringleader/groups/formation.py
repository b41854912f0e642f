"""Forms groups: from a list of addresses, or from the environment of a launcher.

With credentials all connections between ranks use mutual TLS; without, plain TCP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch._C._distributed_c10d import Store

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError
from ringleader.groups import mpi_connector, star_rendezvous
from ringleader.groups import store_rendezvous as meeting
from ringleader.groups.connectors import Connector, SocketConnector
from ringleader.groups.group import Group
from ringleader.groups.group_registry import open_connected
from ringleader.groups.launcher_store import open_store
from ringleader.groups.link_credentials import load_credentials
from ringleader.groups.plaintext_check import require_this_machine
from ringleader.settings import LinkSettings
from ringleader.settings.launch import Launch
from ringleader.transport import tcp_socket
from ringleader.transport.dialer import REACH_S, DialLimits, Endpoint
from ringleader.transport.listener import Listener
from ringleader.transport.shared_listener import ListenerLease
from ringleader.transport.tls_credentials import TlsCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings for forming a group, apart from its members."""

    deadline: Deadline
    config: CollectiveConfig | None = None
    transport: str = "auto"
    """ "auto" shares memory between ranks of one host, "tcp" never does, "mpi" sends
    MPI messages, "grpc" sends everything through rank 0."""
    num_stripes: int = 1
    addresses: tuple[str, ...] = ()
    """Addresses by which other ranks reach this one; empty: that of the route to the
    store."""
    dial_limits: DialLimits | None = None
    credentials: TlsCredentials | None = None
    """Certificates for mutual TLS; None for plain TCP."""
    plaintext: bool = False
    """True if ranks on other machines may be connected without TLS."""
    ports: range = range(1)
    """Ports to listen on, where ``peers`` do not name one; port 0 is any free one."""
    world_ranks: tuple[int, ...] = ()
    """Ranks of the members in torch's world; empty: the group is no part of one."""

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            known = ", ".join(TRANSPORTS)
            raise ConfigError(f"transport {self.transport!r}; there are: {known}")
        if self.transport == "mpi" and self.credentials is not None:
            text = "MPI does not encrypt, and certificates are given for the links"
            raise ConfigError(f"{text}; set RINGLEADER_PLAINTEXT=1, or use tcp")
        if self.transport == "mpi" and self.num_stripes != 1:
            raise ConfigError("connections= is for TCP; MPI has connections of its own")


def group(
    peers: Sequence[str] | None = None,
    rank: int | None = None,
    *,
    transport: str = "auto",
    config: CollectiveConfig | None = None,
    connections: int = 1,
    timeout_s: float = 60.0,
) -> Group:
    """Form a group and return when all ranks are connected.

    ``peers`` are the "host:port" of all ranks, in the same order everywhere, and
    ``rank`` is the index of this process in it. Without them the environment of
    torchrun, mpirun or Slurm is used. ``transport`` "auto" uses shared memory between
    ranks of one host, "tcp" never does, "mpi" sends MPI messages between ranks of one
    mpirun, "grpc" sends everything through rank 0, which alone must be reachable.
    ``connections`` > 1 opens several TCP connections per peer, for networks with high
    bandwidth and latency. ``timeout_s`` bounds the forming; operations take their limit
    from ``config``. Ranks on other machines need certificates, from RINGLEADER_TLS_CA,
    _CERT and _KEY or from RINGLEADER_CREDENTIALS, or RINGLEADER_PLAINTEXT=1.
    """
    links = LinkSettings.from_environment()
    options = Options(
        deadline=Deadline.after(timeout_s),
        config=config,
        transport=transport,
        num_stripes=connections,
        addresses=links.addresses,
        dial_limits=dial_limits(links),
        credentials=load_credentials(links),
        plaintext=links.plaintext,
        ports=links.ports,
    )
    if peers is None:
        if rank is not None:
            raise ConfigError("rank without peers: give both or neither")
        if transport == "mpi":
            place, size, job = mpi_connector.whole_job(options.deadline)
            return _form(place, size, job, f"mpi:{size}", options)
        return from_environment(Launch.from_environment(), options)
    if transport == "mpi":
        raise ConfigError("transport mpi has no peers=: mpirun says who they are")
    if rank is None:
        raise ConfigError("peers without rank: give the index of this process, too")
    if transport == "grpc":
        star, name = star_rendezvous.meet_peers(peers, rank, options)
        return _form(rank, len(peers), star, name, options)
    addresses = _check_peers(peers, rank)
    endpoints = [Endpoint((address,)) for address in addresses]
    _check_encryption(endpoints, options)
    if options.credentials is not None:
        options.credentials.announceable([addresses[rank][0]])
    listener = Listener.open(*addresses[rank], options.credentials)
    view_id = "peers:" + ",".join(f"{host}:{port}" for host, port in addresses)
    connector = _over_sockets(rank, endpoints, listener, options, listener.close)
    return _form(rank, len(peers), connector, view_id, options)


def dial_limits(links: LinkSettings) -> DialLimits:
    """Return the limits of each connection, as the environment gives them."""
    return DialLimits(timeout_s=links.connect_timeout_s, tries=links.connect_tries)


def _check_encryption(endpoints: Sequence[Endpoint], options: Options) -> None:
    if options.credentials is None and not options.plaintext:
        require_this_machine(endpoints)


def _check_peers(peers: Sequence[str], rank: int) -> list[tuple[str, int]]:
    if not peers:
        raise ConfigError("the peer list is empty")
    if not 0 <= rank < len(peers):
        raise ConfigError(f"rank {rank} is not in a list of {len(peers)} peers")
    addresses = [tcp_socket.parse_address(p) for p in peers]
    doubles = {a for a in addresses if addresses.count(a) > 1}
    if doubles:
        host, port = sorted(doubles)[0]
        raise ConfigError(f"{host}:{port} is twice in the peer list")
    return addresses


def from_environment(launch: Launch, options: Options) -> Group:
    """Form the group of a launcher, over its store."""
    if launch.size == 1:
        listener = Listener.open("127.0.0.1", 0, shares_memory=False)
        alone = [Endpoint((("127.0.0.1", listener.port),))]
        connector = _over_sockets(0, alone, listener, options, listener.close)
        return _form(0, 1, connector, "alone", options)
    store = open_store(launch, options.deadline)
    name = f"env:{launch.size}:{launch.attempt}"  # no address: it may be a tunnel
    return over_store(store, launch.rank, launch.size, name, options)


def over_store(
    store: Store, rank: int, size: int, name: str, options: Options
) -> Group:
    """Meet the other ranks in a torch store, and connect.

    The same ranks may use ``name`` again, for their next group.
    """
    turn = meeting.next_turn(store, name)
    view_id = f"{name}#{turn}"
    claim = f"ringleader/{view_id}/claim/{rank}"
    if store.add(claim, 1) > 1:
        raise ConfigError(f"two processes have rank {rank}; every one needs its own")
    keys = [f"ringleader/{view_id}/{peer}" for peer in range(size)]
    meet = _MEETINGS[options.transport]
    try:
        connector = meet(store, rank, keys, options)
        try:
            formed = _form(rank, size, connector, view_id, options)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # so that forming can be repeated
                store.delete_key(keys[rank])
            raise
    except BaseException:
        with contextlib.suppress(RuntimeError):
            store.add(claim, -1)
        raise
    meeting.note_formed(store, name, turn)
    return formed


def _meet_by_address(
    store: Store, rank: int, keys: Sequence[str], options: Options
) -> Connector:
    """Publish this rank's addresses and read the others'."""
    lease = ListenerLease.take(options.ports, options.credentials)
    must_stay = False
    try:
        hosts = options.addresses or (meeting.own_address(store),)
        node = None
        if options.credentials is not None:
            node = options.credentials.node
            hosts = options.credentials.announceable(hosts)
        port = lease.listener.port
        meeting.publish(store, keys[rank], hosts, port, node, lease.channel)
        endpoints = [
            meeting.look_up(store, key, peer, options.deadline)
            for peer, key in enumerate(keys)
        ]
        must_stay = True  # late readers must see whether this rank encrypts
        meeting.check_alike(endpoints, encrypts=options.credentials is not None)
        _check_encryption(endpoints, options)
    except BaseException:
        lease.close()
        with contextlib.suppress(RuntimeError):
            if not must_stay:
                store.delete_key(keys[rank])
        raise
    # All of them listen: it is known who cannot be reached before the time is over.
    limits = replace(options.dial_limits or DialLimits(), reach_s=REACH_S)
    options = replace(options, dial_limits=limits)
    return _over_sockets(rank, endpoints, lease.listener, options, lease.close)


def _meet_by_mpi(
    store: Store, rank: int, keys: Sequence[str], options: Options
) -> Connector:
    return mpi_connector.meet(store, rank, keys, options.deadline)


Meeting = Callable[[Store, int, Sequence[str], Options], Connector]
_MEETINGS: dict[str, Meeting] = {
    "auto": _meet_by_address,
    "tcp": _meet_by_address,
    "mpi": _meet_by_mpi,
    "grpc": star_rendezvous.meet,
}
"""Transport -> what publishes this rank in a store, under its key, and reads the
others."""
TRANSPORTS = tuple(_MEETINGS)


def _over_sockets(
    rank: int,
    endpoints: Sequence[Endpoint],
    listener: Listener,
    options: Options,
    stop_listening: Callable[[], None],
) -> Connector:
    return SocketConnector(
        rank,
        endpoints,
        listener,
        share_memory=options.transport == "auto",
        num_stripes=options.num_stripes,
        dial_limits=options.dial_limits,
        stop_listening=stop_listening,
    )


def _form(
    rank: int, size: int, connector: Connector, view_id: str, options: Options
) -> Group:
    return open_connected(
        rank,
        size,
        connector,
        view_id,
        options.deadline,
        config=options.config,
        world_ranks=options.world_ranks,
    )
