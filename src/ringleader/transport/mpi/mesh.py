"""connect builds the mesh of one group over MPI: a control stream and a link per peer.

Every rank chooses the tags on which it receives, and tells them in a hello.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringleader.deadline import Deadline
from ringleader.errors import PeerRefused, PeerUnreachable, ProtocolError
from ringleader.transport.host_token import new_incarnation
from ringleader.transport.memory_link import socket_pair
from ringleader.transport.mesh import Mesh
from ringleader.transport.mpi import link as links
from ringleader.transport.mpi.control_pump import ControlPump
from ringleader.transport.mpi.library import HELLO_TAG, POLL_S, World
from ringleader.transport.mpi.link import MpiLink
from ringleader.transport.mpi.poller import poller
from ringleader.wire import mpi_hello as wire
from ringleader.wire.mpi_hello import MpiHello

MAX_WAITING = 4096
"""Hellos that are kept for groups which this rank has not begun to form; the oldest
are dropped."""


@dataclass(slots=True)
class _Builder:
    """The state of one mesh while it is being connected."""

    world: World
    group: int
    rank: int
    places: Sequence[int]
    """The MPI rank of each rank of the group."""
    incarnation: bytes = field(default_factory=new_incarnation)
    tags: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Peer -> the tags on which we receive its control stream and its bulk."""
    answered: dict[int, bytes] = field(default_factory=dict)
    """Peer -> the incarnation that our last hello answered."""
    settled: dict[int, MpiHello] = field(default_factory=dict)

    def begin(self) -> None:
        """Send the first hello to every other rank."""
        for peer in range(len(self.places)):
            if peer != self.rank:
                self.tags[peer] = self.world.new_tag(), self.world.new_tag()
                self._greet(peer, wire.NOT_SEEN)

    def progress(self) -> bool:
        """Read the hellos that are here; return whether all peers are settled."""
        self._receive()
        for peer in self.tags.keys() - self.settled.keys():
            waiting = self.world.hellos.get((self.group, self.places[peer]), [])
            while waiting and peer not in self.settled:
                self._act(peer, wire.decode(waiting.pop(0), peer))
            if not waiting:
                self.world.hellos.pop((self.group, self.places[peer]), None)
        return self.settled.keys() == self.tags.keys()

    def _receive(self) -> None:
        world = self.world
        while found := world.take(world.mpi.ANY_SOURCE, HELLO_TAG):
            source, data = found
            key = wire.decode(data, f"rank {source} of MPI").group, source
            world.hellos.setdefault(key, []).append(data)
            if len(world.hellos) > MAX_WAITING:
                world.hellos.pop(next(iter(world.hellos)))

    def _act(self, peer: int, hello: MpiHello) -> None:
        size = len(self.places)
        if hello.size != size:
            text = f"forms this group with {hello.size} ranks, and we with {size}"
            raise PeerRefused(peer, text)
        if hello.rank != peer:
            raise ProtocolError(peer, f"says over MPI that it is rank {hello.rank}")
        if self.answered.get(peer) != hello.incarnation:
            self._greet(peer, hello.incarnation)
            self.answered[peer] = hello.incarnation
        if hello.seen == self.incarnation:
            self.settled[peer] = hello

    def _greet(self, peer: int, seen: bytes) -> None:
        control, bulk = self.tags[peer]
        hello = MpiHello(
            group=self.group,
            incarnation=self.incarnation,
            seen=seen,
            rank=self.rank,
            size=len(self.places),
            control_tag=control,
            bulk_tag=bulk,
        )
        self.world.post(wire.encode(hello), self.places[peer], HELLO_TAG)

    def mesh(self) -> Mesh:
        """Open the links to the ranks that are settled."""
        mesh = Mesh(incarnation=self.incarnation)
        for peer, hello in self.settled.items():
            control, bulk = self.tags[peer]
            link = self._link(peer, hello.bulk_tag, bulk, links.BULK)
            stream = self._link(peer, hello.control_tag, control, links.CONTROL)
            mesh.bulk[peer] = link
            mesh.control[peer], inner = socket_pair()
            pump = ControlPump(stream, inner)
            link.may_end = pump.has_told_all
            poller.add(pump)
            if peer == 0:
                mesh.incarnation = hello.incarnation
        return mesh

    def _link(
        self, peer: int, send_tag: int, recv_tag: int, shape: tuple[int, int]
    ) -> MpiLink:
        world, route = self.world, (self.places[peer], send_tag, recv_tag)
        return MpiLink(world.mpi, world.comm, peer, route, poller, shape)


def connect(
    world: World, group: int, rank: int, places: Sequence[int], deadline: Deadline
) -> Mesh:
    """Connect to all other ranks in time, or raise and leave nothing open.

    ``places`` are the MPI ranks of the ranks of the group.
    """
    builder = _Builder(world, group, rank, places)
    try:
        with world.lock:
            builder.begin()
        while True:
            with world.lock:
                if builder.progress():
                    return builder.mesh()
            if deadline.is_over():
                absent = min(builder.tags.keys() - builder.settled.keys())
                text = f"did not join over MPI within {deadline.after_s:.1f} s"
                raise PeerUnreachable(absent, text)
            time.sleep(POLL_S)
    except BaseException:
        builder.mesh().close()  # those who count on us see that we are gone
        raise
