"""Which bulk connections a pair of ranks has, and the link they make."""

from __future__ import annotations

from ringleader.transport.helped_link import HelpedLink
from ringleader.transport.link import Link
from ringleader.transport.listener import GreetedConnection
from ringleader.transport.mesh_config import MeshConfig
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.socket_link import SocketLink, StripedLink
from ringleader.wire import hello as wire


def agree(connection: GreetedConnection, config: MeshConfig) -> int:
    """Return the one-way connections that a dialer asks for and gets; 0: none.

    Its control hello asks by the number of stripes. We agree, with idle cores or
    without: a connection for each direction costs no more than one for both.
    """
    hello = connection.hello
    is_asked = hello.purpose is wire.Purpose.CONTROL and hello.num_stripes > 1
    is_secure = isinstance(connection.sock, SecureSocket)
    if is_asked and is_secure and config.num_stripes == 1:
        return hello.num_stripes // 2 * 2
    return 0


def make(config: MeshConfig, links: list[SocketLink], is_one_way: bool) -> Link:
    """Return the link over all bulk connections to one rank, in their order.

    Of one-way connections every second carries what the accepting side sends.
    """
    if not is_one_way:
        return links[0] if len(links) == 1 else StripedLink(links)
    outs, ins = links[0::2], links[1::2]
    if links[0].peer > config.rank:  # which dialed us
        outs, ins = ins, outs
    return HelpedLink(outs, ins, has_helpers=config.num_one_way > 0)
