"""connect builds the full mesh of one group: a control stream and a link to every peer.

Each rank dials the lower ranks and accepts the higher ones. A pair first opens its
control stream; the answer to the hello tells whether both share a host. If so they
exchange shared memory segments over a Unix socket, else they open their bulk
connections.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass, field
from functools import partial

from ringleader.deadline import Cancellation, Deadline
from ringleader.errors import (
    DeadlineExceeded,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.transport import fd_exchange, secure_socket, shm_segment, tcp_socket
from ringleader.transport.dialer import REPORT_S, DirectRoutes, Opener, Routes
from ringleader.transport.host_token import host_token, new_incarnation
from ringleader.transport.link import Link
from ringleader.transport.listener import GreetedConnection, Listener
from ringleader.transport.mesh_config import MeshConfig
from ringleader.transport.parallel_steps import Step, run_at_once
from ringleader.transport.shm_link import ShmLink, ShmPeer
from ringleader.transport.socket_link import StripedLink
from ringleader.wire import hello as wire

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Mesh:
    """All connections to the other ranks of one group."""

    control: dict[int, socket.socket] = field(default_factory=dict)
    bulk: dict[int, Link] = field(default_factory=dict)
    shm_peers: dict[int, ShmPeer] = field(default_factory=dict)
    segment: shm_segment.Segment | None = None
    notes: dict[int, str] = field(default_factory=dict)
    """Why a peer on this host shares no memory with us, where that failed."""
    incarnation: bytes = b""
    """That of rank 0, equal on all ranks and different for every mesh."""

    def close(self) -> None:
        """Close all connections and let go of shared memory. Idempotent."""
        for sock in self.control.values():
            sock.close()
        for link in self.bulk.values():
            link.close()
        self.shm_peers.clear()
        self.bulk.clear()
        self.segment = None


class _Builder:
    """The state of one mesh while it is being connected."""

    def __init__(
        self,
        config: MeshConfig,
        listener: Listener,
        deadline: Deadline,
        routes: Routes | None,
    ) -> None:
        self.config = config
        self.listener = listener
        self.routes = routes or DirectRoutes(
            config.endpoints,
            listener.credentials,
            are_listening=config.at_once,
            limits=config.dial_limits,
        )
        self.deadline = deadline
        self.incarnation = new_incarnation()
        self.mesh = Mesh(incarnation=self.incarnation)
        self.incarnations: dict[int, bytes] = {}
        self.geometry = shm_segment.Geometry(config.size)
        self.fd = -1
        self.segment_lock = threading.Lock()
        self.shares = config.share_memory and bool(listener.unix_name)
        self.host = host_token() if self.shares else bytes(16)
        self.waiting: dict[int, dict[int, socket.socket]] = {}
        self.dialers: dict[int, Opener] = {}

    def hello(self, to: int, purpose: wire.Purpose, stripe: int = 0) -> bytes:
        hello = wire.Hello(
            purpose=purpose,
            group=self.config.group_at(to),
            from_rank=self.config.rank,
            to_rank=to,
            size=self.config.size,
            incarnation=self.incarnation,
            host=self.host,
            namespace=self.config.namespace,
            stripe=stripe,
            num_stripes=self.config.num_stripes,
        )
        return wire.encode_hello(hello)

    def answer(self, status: wire.Status) -> wire.HelloReply:
        return wire.HelloReply(
            status=status,
            rank=self.config.rank,
            incarnation=self.incarnation,
            host=self.host,
            unix_name=self.listener.unix_name,
        )

    def my_segment(self) -> shm_segment.Segment:
        with self.segment_lock:
            if self.mesh.segment is None:
                self.fd, self.mesh.segment = shm_segment.create(
                    self.geometry, self.incarnation
                )
            return self.mesh.segment

    # -- the dialing side ----------------------------------------------------------

    def dial(self, to: int) -> None:
        """Open all connections to the lower rank ``to``."""
        sock, answer = self._open(to, wire.Purpose.CONTROL)
        self.mesh.control[to] = sock
        if to == 0:
            self.mesh.incarnation = answer.incarnation
        same_host = self.shares and answer.host == self.host
        if same_host and self._dial_shm_peer(to, answer):
            return
        for stripe in range(self.config.num_stripes):
            sock, _ = self._open(to, wire.Purpose.BULK, stripe)
            self._add_stripe(to, stripe, sock)

    def _open(
        self, to: int, purpose: wire.Purpose, stripe: int = 0
    ) -> tuple[socket.socket, wire.HelloReply]:
        if to not in self.dialers:
            self.dialers[to] = self.routes.dialer(to, self.deadline)
        hello = self.hello(to, purpose, stripe)
        try:
            return self.dialers[to].open(
                lambda sock, deadline: self._greet(sock, to, hello, deadline)
            )
        except (PeerLost, DeadlineExceeded) as exc:
            raise self._unreachable(to, exc.text) from exc

    def _greet(
        self, sock: socket.socket, to: int, hello: bytes, deadline: Deadline
    ) -> wire.HelloReply:
        tcp_socket.send_all(sock, hello, to, deadline)
        data = tcp_socket.recv_exact(sock, len(secure_socket.NOT_TLS), to, deadline)
        if data == secure_socket.NOT_TLS:
            text = "it speaks TLS and we do not; is RINGLEADER_CREDENTIALS set here?"
            raise PeerRefused(to, f"refused us: {text}")
        data += tcp_socket.recv_exact(sock, wire.REPLY_BYTES - len(data), to, deadline)
        answer = wire.decode_reply(data, to)
        if answer.status is not wire.Status.OK:
            raise PeerRefused(to, f"refused us: {wire.EXPLANATION[answer.status]}")
        if answer.rank != to:
            raise ProtocolError(to, f"hello: answers as rank {answer.rank}")
        return answer

    def _dial_shm_peer(self, to: int, answer: wire.HelloReply) -> bool:
        """Exchange segments; return False and add a note if that fails."""
        doorbell = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            doorbell.settimeout(max(0.05, self.deadline.left_s()))
            doorbell.connect(fd_exchange.unix_socket_path(answer.unix_name))
            doorbell.setblocking(False)
            if not fd_exchange.is_same_user(doorbell):
                raise PeerRefused(
                    to, "its Unix socket belongs to another user of this host"
                )
            self._greet(doorbell, to, self.hello(to, wire.Purpose.SHM), self.deadline)
            mine = self.my_segment()
            fd_exchange.send_fd(doorbell, self.fd, to)
            theirs = self._receive_segment(doorbell, to, answer.incarnation)
        except (OSError, PeerLost, PeerRefused) as exc:
            self.mesh.notes[to] = f"shared memory not possible: {exc}"
            doorbell.close()
            return False
        except BaseException:
            doorbell.close()
            raise
        self._add_shm_peer(doorbell, to, mine, theirs)
        return True

    # -- the accepting side --------------------------------------------------------

    def accept(self) -> None:
        """Accept all connections of the higher ranks."""
        expected = set(range(self.config.rank + 1, self.config.size))
        while missing := expected - self.mesh.bulk.keys():
            names = ", ".join(str(r) for r in sorted(missing))
            try:
                connection = self._take(f"rank {names}")
            except DeadlineExceeded as exc:
                raise self._unreachable(min(missing), exc.text) from exc
            try:
                self._answer_hello(connection)
            except (PeerLost, PeerRefused) as exc:
                # It will dial again or give up; in both cases we go on.
                connection.sock.close()
                self.mesh.notes[connection.hello.from_rank] = str(exc)
            except BaseException:
                connection.sock.close()
                raise

    def _take(self, who: str) -> GreetedConnection:
        """Return the next connection; tell the user if none comes for a while."""

        def report() -> None:
            ours = self.config.endpoints[self.config.rank].addresses
            where = tcp_socket.format_addresses(ours)
            _log.warning("%s has not connected yet; it dials us at %s", who, where)

        late = Deadline.after(REPORT_S)
        return self.listener.take(self._for_us, self.deadline, who, late, report)

    def _for_us(self, hello: wire.Hello) -> bool:
        return hello.group == self.config.group_at(self.config.rank)

    def _answer_hello(self, connection: GreetedConnection) -> None:
        hello, rank = connection.hello, connection.hello.from_rank
        status = self._judge(hello, connection.node)
        reason = wire.EXPLANATION.get(status, "")
        if status is wire.Status.OK:
            try:
                self._check_host(connection)
            except PeerUntrusted as exc:
                status, reason = wire.Status.WRONG_HOST, exc.text
        answer = wire.encode_reply(self.answer(status))
        tcp_socket.send_all(connection.sock, answer, rank, self.deadline)
        if status is not wire.Status.OK:
            who = f" (node {connection.node})" if connection.node else ""
            raise PeerRefused(rank, f"refused by us{who}: {reason}")
        if isinstance(connection.sock, secure_socket.SecureSocket):
            connection.sock.who = rank
        if hello.purpose is wire.Purpose.CONTROL:
            self.incarnations[rank] = hello.incarnation
            self._forget(rank)  # it lost our answer or restarted, and dialed again
            self.mesh.control[rank] = connection.sock
        elif hello.purpose is wire.Purpose.SHM:
            self._accept_shm_peer(connection)
        else:
            self._add_stripe(rank, hello.stripe, connection.sock)

    def _check_host(self, connection: GreetedConnection) -> None:
        """Raise PeerUntrusted if its certificate is not for the host of its rank."""
        if isinstance(connection.sock, secure_socket.SecureSocket):
            rank = connection.hello.from_rank
            hosts = [host for host, _ in self.config.endpoints[rank].addresses]
            connection.sock.check_hosts(hosts, rank)

    def _judge(self, hello: wire.Hello, node: str) -> wire.Status:
        """Return the status to answer; ``node`` is the sender if TLS has proven it."""
        rank = hello.from_rank
        if hello.namespace != self.config.namespace:
            return wire.Status.WRONG_NAMESPACE
        if hello.size != self.config.size:
            return wire.Status.WRONG_SIZE
        if hello.to_rank != self.config.rank or rank <= self.config.rank:
            return wire.Status.WRONG_RANK
        if node and self.config.endpoints[rank].node not in (None, node):
            return wire.Status.WRONG_RANK  # a member, but not the one with this rank
        if hello.purpose is wire.Purpose.CONTROL:
            known = self.incarnations.get(rank, hello.incarnation)
            is_new = known == hello.incarnation or self._has_left(rank)
            return wire.Status.OK if is_new else wire.Status.DUPLICATE
        if self.incarnations.get(rank) != hello.incarnation:
            return wire.Status.DUPLICATE
        if hello.num_stripes != self.config.num_stripes:
            return wire.Status.WRONG_SIZE
        return wire.Status.OK

    def _accept_shm_peer(self, connection: GreetedConnection) -> None:
        rank, doorbell = connection.hello.from_rank, connection.sock
        mine = self.my_segment()
        try:
            fd = fd_exchange.receive_fd(doorbell, rank, self.deadline)
            theirs = _attach(fd, self.geometry, connection.hello.incarnation)
            fd_exchange.send_fd(doorbell, self.fd, rank)
            if (
                tcp_socket.recv_exact(doorbell, 1, rank, self.deadline)
                != fd_exchange.YES
            ):
                raise OSError("the peer could not map our segment")
        except (OSError, PeerLost) as exc:
            self.mesh.notes[rank] = f"shared memory not possible: {exc}"
            doorbell.close()
            return
        self._add_shm_peer(doorbell, rank, mine, theirs)

    def _has_left(self, rank: int) -> bool:
        """Return whether a rank hung up before it had opened all connections."""
        return rank not in self.mesh.bulk and tcp_socket.has_hung_up(
            self.mesh.control[rank]
        )

    def _forget(self, rank: int) -> None:
        """Close what ``rank`` has opened so far."""
        if rank in self.mesh.control:
            self.mesh.control.pop(rank).close()
        for sock in self.waiting.pop(rank, {}).values():
            sock.close()

    # -- both sides ----------------------------------------------------------------

    def _add_stripe(self, rank: int, stripe: int, sock: socket.socket) -> None:
        """Add a bulk connection; the link is made once all of them are open."""
        stripes = self.waiting.setdefault(rank, {})
        if stripe in stripes:
            stripes[stripe].close()
        stripes[stripe] = sock
        if len(stripes) == self.config.num_stripes:
            if rank in self.mesh.bulk:  # the dialer missed our answer, dialed again
                self.mesh.bulk[rank].close()
            links = [self.routes.link(stripes[i], rank) for i in sorted(stripes)]
            self.mesh.bulk[rank] = links[0] if len(links) == 1 else StripedLink(links)
            del self.waiting[rank]

    def _unreachable(self, rank: int, why: str) -> PeerUnreachable:
        """Return an error with the address, the limit and the usual reason."""
        where = tcp_socket.format_addresses(self.config.endpoints[rank].addresses)
        text = (
            f"{where} {why}; is it started, with the same peer list in the same "
            "order as ours?"
        )
        if note := self.mesh.notes.get(rank):
            text += f" It was {note.partition(': ')[2]}"
        is_alone = not self.config.endpoints[self.config.rank].channel
        if is_alone and (others := self.listener.num_parked()):
            text += f" {others} connections wait here for a group with another list"
        return PeerUnreachable(rank, text)

    def _receive_segment(
        self, doorbell: socket.socket, rank: int, incarnation: bytes
    ) -> shm_segment.Segment:
        fd = fd_exchange.receive_fd(doorbell, rank, self.deadline)
        try:
            theirs = _attach(fd, self.geometry, incarnation)
        except OSError:
            tcp_socket.send_all(doorbell, fd_exchange.NO, rank, self.deadline)
            raise
        tcp_socket.send_all(doorbell, fd_exchange.YES, rank, self.deadline)
        return theirs

    def _add_shm_peer(
        self,
        doorbell: socket.socket,
        rank: int,
        mine: shm_segment.Segment,
        theirs: shm_segment.Segment,
    ) -> None:
        ranks = (self.config.rank, rank)
        shm_peer = ShmPeer(doorbell, ranks, (mine, theirs), self.geometry)
        self.mesh.shm_peers[rank] = shm_peer
        self.mesh.bulk[rank] = ShmLink(shm_peer)

    def finish(self) -> None:
        """Put the peers in order, whoever was first; let go of the rest."""
        mesh = self.mesh
        mesh.control = dict(sorted(mesh.control.items()))
        mesh.bulk = dict(sorted(mesh.bulk.items()))
        mesh.shm_peers = dict(sorted(mesh.shm_peers.items()))
        if self.fd >= 0:
            os.close(self.fd)
        for stripes in self.waiting.values():
            for sock in stripes.values():
                sock.close()


def connect(
    config: MeshConfig,
    listener: Listener,
    deadline: Deadline,
    routes: Routes | None = None,
) -> Mesh:
    """Connect to all other ranks in time, or raise and leave nothing open."""
    stop = Cancellation()
    if deadline.cancellation is not None:
        deadline.cancellation.on_cancel(stop.cancel)
    bound = Deadline(deadline.at_s, deadline.after_s, stop)
    builder = _Builder(config, listener, bound if config.at_once else deadline, routes)
    steps: list[Step] = [partial(builder.dial, to) for to in range(config.rank)]
    if config.rank < config.size - 1:
        steps.append(builder.accept)
    try:
        if config.at_once:
            run_at_once(steps, deadline, stop)
        else:
            for step in steps:
                step()
    except BaseException:
        builder.mesh.close()
        raise
    finally:
        builder.finish()
    return builder.mesh


def _attach(
    fd: int, geometry: shm_segment.Geometry, incarnation: bytes
) -> shm_segment.Segment:
    try:
        return shm_segment.attach(fd, geometry, incarnation)
    finally:
        os.close(fd)
