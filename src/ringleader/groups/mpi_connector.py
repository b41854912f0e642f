"""How the ranks of an MPI job connect by MPI messages, and how they meet."""

from __future__ import annotations

from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, ProtocolError
from ringleader.groups.connectors import at_end
from ringleader.groups.handle import view_hash
from ringleader.groups.store_rendezvous import look_up_link, publish_link
from ringleader.transport.mesh import Mesh
from ringleader.transport.mpi import library
from ringleader.transport.mpi.library import World
from ringleader.transport.mpi.mesh import connect
from ringleader.transport.mpi.poller import poller


class MpiConnector:
    """Connects the meshes of a group and its sub-groups by MPI messages."""

    hub = None

    def __init__(self, world: World, rank: int, places: Sequence[int]) -> None:
        """``places`` are the MPI ranks of the ranks of the group."""
        self._world = world
        self._rank = rank
        self._places = places
        at_end["mpi"] = poller.stop

    def __call__(self, ranks: Sequence[int], name: str, deadline: Deadline) -> Mesh:
        """See Connector."""
        rank = list(ranks).index(self._rank)
        places = [self._places[r] for r in ranks]
        return connect(self._world, view_hash(name), rank, places, deadline)

    def close(self) -> None:
        """Wait, for a moment, until the peers have taken what was sent."""
        poller.drain()


def whole_job(deadline: Deadline) -> tuple[int, int, MpiConnector]:
    """Rank, size and connector of the group of all ranks that mpirun started."""
    world = library.open_world(deadline)
    return world.rank, world.size, MpiConnector(world, world.rank, range(world.size))


def meet(
    store: Store, rank: int, keys: Sequence[str], deadline: Deadline
) -> MpiConnector:
    """Publish this rank's rank in MPI and read the others'."""
    everybody = library.load().COMM_WORLD
    check_size(everybody.size, len(keys))
    publish_link(store, keys[rank], "mpi", str(everybody.rank))
    found = [
        look_up_link(store, key, "mpi", peer, deadline) for peer, key in enumerate(keys)
    ]
    places = [
        parse_place(text, peer, everybody.size) for peer, text in enumerate(found)
    ]
    if len(set(places)) < len(places):
        text = f"the ranks of the group are the ranks {places} of MPI"
        raise ConfigError(f"{text}; start them with one mpirun")
    return MpiConnector(library.open_world(deadline), rank, places)


def check_size(mpi_size: int, group_size: int) -> None:
    """Raise ConfigError if MPI knows fewer ranks than the group has."""
    if mpi_size < group_size:
        text = f"MPI sees {mpi_size} of the {group_size} ranks here"
        how = "start with mpirun, and use the mpi4py of the MPI that it belongs to"
        raise ConfigError(f"{text}; {how}")


def parse_place(text: str, peer: int, mpi_size: int) -> int:
    """Parse the MPI rank that ``peer`` published."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ProtocolError(peer, f"published {text[:64]!r} as its rank in MPI")
    if int(text) >= mpi_size:
        raise ProtocolError(peer, f"published rank {text} of an MPI of {mpi_size}")
    return int(text)
