"""What is written to a connection that has ended is an error of the connection."""

from __future__ import annotations

import asyncio

import pytest

from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.node.protocol import framing

LIMIT_S = 60.0


def test_a_connection_that_was_closed_twice_raises_what_others_raise() -> None:
    """asyncio's TLS answers with AttributeError, which ended the control thread of a
    training process in whose arms a newcomer was killed."""

    async def main() -> None:
        secret = ClusterSecret(root=Secret(bytes(range(32))))
        ours, theirs = (Credentials.issue(secret, NodeKey.ephemeral()) for _ in "ab")
        ended = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()
            ended.set()

        server = await asyncio.start_server(
            serve, "127.0.0.1", 0, ssl=theirs.server, ssl_shutdown_timeout=LIMIT_S
        )
        async with server:
            host, port = server.sockets[0].getsockname()
            _, writer = await asyncio.open_connection(
                host,
                port,
                ssl=ours.client,
                server_hostname=ours.server_name(host=host),
            )
            framing.write(writer, framing.pack("before"))
            await writer.drain()
            writer.close()
            writer.close()
            with pytest.raises(AttributeError):
                writer.write(b"as it was")
            with pytest.raises(ConnectionResetError, match="closed"):
                framing.write(writer, framing.pack("after"))
            await ended.wait()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
