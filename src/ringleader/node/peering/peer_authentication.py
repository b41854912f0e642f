"""Authentication of peers: strangers and impostors are refused here.

TLS has finished when these functions are called; they check that the certificate was
issued with the secret of our cluster and that the hello belongs to its owner.
"""

from __future__ import annotations

import asyncio

from ringleader.errors import ProtocolError
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.ids import NodeId
from ringleader.node.protocol.hello import AgentHello


def authenticate(
    credentials: NodeCredentials,
    writer: asyncio.StreamWriter,
    expect: NodeId | None,
    address: str,
) -> NodeId:
    """Return the node at the other end of a finished TLS handshake with ``address``.

    Raises ``PeerUntrusted`` if it is not in our cluster, or not ``expect``.
    """
    tls = writer.get_extra_info("ssl_object")
    credentials.check_alpn(tls, address)
    # Our own node id is accepted: the incarnation tells whether it is this process.
    der = tls.getpeercert(True)
    return credentials.verify(der, expect=expect, siblings=True, peer=address)


def check_hello_owner(hello: AgentHello, node: NodeId, address: str) -> None:
    """Raise ``ProtocolError`` if the hello names another node than the certificate."""
    if hello.node != node:
        raise ProtocolError(address, "names another node than its certificate proves")
