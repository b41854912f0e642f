"""``LinkProbe``: measures a link the way tensors use it: a new port, sealed records.

The two agents agree on a port over a ``Purpose.PROBE`` connection, then a thread on
each side measures. A node takes part in one probe at a time. Of each pair only the
smaller id asks, so that two nodes never wait for each other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerError, PeerUnreachable, ProtocolError
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.ids import NodeId
from ringleader.node.peering.peer_connection import PeerConnection, connection_error
from ringleader.node.protocol import framing
from ringleader.node.protocol.hello import MAX_HELLO_BYTES
from ringleader.node.protocol.probe_port import ProbePort, decode_probe_port
from ringleader.topology import link_speed
from ringleader.topology.interfaces import kind_of_peer, list_interfaces
from ringleader.topology.link_profile import LinkProfile
from ringleader.transport import tcp_socket
from ringleader.transport.dialer import secure
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.listening_socket import listen
from ringleader.transport.secure_socket import SecureSocket

LIMIT_S = 8.0
"""For one link, including the wait for its turn; with a round trip of 0.1 s it takes
half of that."""

SHARED_MEMORY = LinkProfile(1e-6, 5e9, 5e9)
"""Link of nodes that share memory: faster than any network, and not worth a probe."""


@dataclass(slots=True)
class LinkProbe:
    """The probes of one node. Lives on the event loop of the agent."""

    credentials: NodeCredentials
    ports: range
    """Ports to listen on, as ranks do; port 0 is any free one."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, connection: PeerConnection) -> LinkProfile:
        """Measure the link to a node that we dialled; closes the connection.

        Raises ``PeerError`` if the link cannot be measured.
        """
        try:
            async with asyncio.timeout(LIMIT_S), self._busy:
                body = await framing.read(
                    connection.reader, connection.node, MAX_HELLO_BYTES
                )
                port = decode_probe_port(body, connection.node).port
                address = (connection.address[0], port)
                return await asyncio.to_thread(self._dial, address, connection.node)
        except (TimeoutError, ProtocolError) as exc:
            raise _unmeasured(connection.node, exc) from exc
        finally:
            connection.close()

    async def answer(self, connection: PeerConnection) -> LinkProfile:
        """Measure the link to a node that asks for it; closes the connection.

        Raises ``PeerError`` if the link cannot be measured.
        """
        node = connection.node
        try:
            async with asyncio.timeout(LIMIT_S), self._busy:
                listening = listen("", self.ports)
                port: int = listening.getsockname()[1]
                framing.write(connection.writer, framing.pack(ProbePort(port)))
                return await asyncio.to_thread(self._accept, listening, node)
        except (OSError, ConfigError) as exc:
            raise _unmeasured(node, exc) from exc
        finally:
            connection.close()

    def _dial(self, address: tuple[str, int], node: NodeId) -> LinkProfile:
        deadline = Deadline.after(LIMIT_S)
        try:
            raw = socket.create_connection(address, deadline.left_s())
        except OSError as exc:
            raise connection_error(f"{address[0]}:{address[1]}", exc) from exc
        return measure(raw, self.credentials, node, deadline, is_server=False)

    def _accept(self, listening: socket.socket, node: NodeId) -> LinkProfile:
        deadline = Deadline.after(LIMIT_S)
        with listening:
            listening.settimeout(deadline.left_s())
            try:
                raw, _ = listening.accept()
            except OSError as exc:
                text = "did not connect to the probe port; does a firewall block it?"
                raise PeerUnreachable(node, text) from exc
        return measure(raw, self.credentials, node, deadline, is_server=True)


def _unmeasured(node: NodeId, exc: Exception) -> PeerUnreachable:
    why = str(exc) or "no answer in time"
    return PeerUnreachable(node, f"the link could not be measured ({why})")


def measure(
    raw: socket.socket,
    credentials: NodeCredentials,
    node: NodeId,
    deadline: Deadline,
    *,
    is_server: bool,
) -> LinkProfile:
    """Measure over a connection to ``node``, and close it.

    Raises ``PeerError`` if the link cannot be measured.
    """
    work = link_speed.measure_receiving if is_server else link_speed.measure_sending
    try:
        with raw:
            host = raw.getpeername()[0]
            kind = kind_of_peer(host, list_interfaces())
            tcp_socket.tune(raw)
            made = SecureSocket(
                raw,
                credentials,
                node,
                is_server=is_server,
                expect=node,
                host="" if is_server else host,
            )
            with secure(made, deadline) as sock:
                return work(_Stream(sock), deadline, peer=node, kind=kind)
    except PeerError:
        raise
    except OSError as exc:
        raise connection_error(str(node), exc) from exc


class _Stream:
    """An encrypted connection that waits, with a time-out, as a measurement does.

    Its records are those of tensors: those of Python's own TLS are a third as fast, and
    would be what is measured where the network is faster.
    """

    def __init__(self, sock: SecureSocket) -> None:
        self._sock = sock
        self._limit_s: float | None = None

    def send(self, data: memoryview, /) -> int:
        """Send some of ``data``."""
        return self._wait(lambda: self._sock.send(data), POLLOUT)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes; 0 at the end."""
        return self._wait(lambda: self._sock.recv_into(buffer), POLLIN)

    def settimeout(self, value: float | None, /) -> None:
        """Set the limit of one call."""
        self._limit_s = value

    def gettimeout(self) -> float | None:
        """Return the limit of one call."""
        return self._limit_s

    def _wait(self, work: Callable[[], int], events: int) -> int:
        until = Deadline.after(LIMIT_S if self._limit_s is None else self._limit_s)
        while True:
            try:
                return work()
            except BlockingIOError:
                if until.is_over():
                    raise TimeoutError from None
                wait_ready([(self._sock.fileno(), events)], until.left_s())
