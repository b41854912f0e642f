"""form_view_group: the group of a membership view, formed within milliseconds.

The members of a view know each other's endpoints from the view itself, so there is no
store and no launcher. Every process keeps one lease of the shared listener as long as
it takes part; connections for a view that is not installed here yet wait there, unread.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringleader.collectives.config import CollectiveConfig
from ringleader.deadline import Deadline
from ringleader.errors import GroupAborted, RingleaderError
from ringleader.groups.connectors import SocketConnector
from ringleader.groups.group import Group, handle_of
from ringleader.groups.group_registry import open_connected
from ringleader.groups.known_links import KnownLinks
from ringleader.groups.plaintext_check import require_this_machine
from ringleader.groups.store_rendezvous import check_alike, encode, read
from ringleader.transport.dialer import Endpoint
from ringleader.transport.shared_listener import ListenerLease


def encode_endpoint(lease: ListenerLease, hosts: Sequence[str]) -> bytes:
    """Return the encoded endpoint of this process, which listens on ``hosts``.

    Raises ConfigError if they cannot be addresses or are not in the certificate.
    """
    credentials = lease.listener.credentials
    node = None
    if credentials is not None:
        node = credentials.node
        hosts = credentials.announceable(hosts)
    return encode(hosts, lease.listener.port, node, lease.channel).encode()


def decode_endpoint(value: bytes, peer: int) -> Endpoint:
    """Return the endpoint that ``peer`` published; ProtocolError if it is invalid."""
    return read(value, peer)


def form_view_group(  # noqa: PLR0913 - one keyword each
    name: str,
    rank: int,
    endpoints: Sequence[Endpoint],
    lease: ListenerLease,
    *,
    deadline: Deadline,
    known: KnownLinks,
    config: CollectiveConfig | None = None,
    share_memory: bool = True,
    plaintext: bool = False,
) -> Group:
    """Form the group of the view ``name`` between the processes at ``endpoints``.

    All members call it with the same name and endpoints, and each with its own
    ``rank``. ``known`` belongs to the process: links that its earlier groups measured
    are not measured again, if both ends know them. The lease stays open when the group
    is closed.

    Another thread ends it by ``deadline.cancellation.cancel(reason)``, for example
    because a member was lost; it then raises GroupAborted, within 5 ms in its first
    moments. A group that has formed is aborted by the same call. A member whose
    listener is gone is reported at once (PeerUnreachable).
    """
    credentials = lease.listener.credentials
    check_alike(endpoints, encrypts=credentials is not None)
    if credentials is None and not plaintext:
        require_this_machine(endpoints)
    connector = SocketConnector(
        rank,
        endpoints,
        lease.listener,
        share_memory=share_memory,
        num_stripes=1,
        stop_listening=lambda: None,
        at_once=True,
    )
    try:
        formed = open_connected(
            rank,
            len(endpoints),
            connector,
            name,
            deadline,
            config=config,
            known=known.row(rank, endpoints),
            is_view=True,
        )
    except RingleaderError as exc:
        if deadline.cancellation is not None and deadline.cancellation.reason:
            raise GroupAborted(deadline.cancellation.reason) from exc
        raise
    known.learn(rank, endpoints, handle_of(formed).network)
    return formed
