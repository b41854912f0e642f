"""StarConnector: groups whose ranks reach each other through rank 0, over gRPC.

torch asks for each of its groups one by one. Those of one world share a star, because
its workers can reach nobody but rank 0 of the world.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ringleader.deadline import Deadline
from ringleader.groups.connectors import at_end
from ringleader.groups.handle import view_hash
from ringleader.transport import mesh as meshes
from ringleader.transport.dialer import Endpoint
from ringleader.transport.mesh import Mesh
from ringleader.transport.mesh_config import MeshConfig
from ringleader.transport.star.routes import StarRoutes
from ringleader.transport.star.star import LINGER_S, Star

_lock = threading.Lock()
_in_use: dict[int, Star] = {}
"""Rank in torch's world -> the star of that world."""
_left: list[Star] = []
"""Stars that this rank has left; as rank 0 it may still carry the links of others."""


class StarConnector:
    """Connects a group of a star and its sub-groups; see Connector."""

    def __init__(self, star: Star, ranks: Sequence[int]) -> None:
        self._star = star
        self._ranks = list(ranks)
        """Ranks of the group's members in the star."""
        self._is_open = True

    def __call__(self, ranks: Sequence[int], name: str, deadline: Deadline) -> Mesh:
        """See Connector."""
        among = [self._ranks[rank] for rank in ranks]
        member = self._star.member
        config = MeshConfig(
            rank=among.index(member.rank),
            size=len(among),
            group=view_hash(name),
            endpoints=tuple(Endpoint((self._star.address,)) for _ in among),
            namespace=member.namespace,
            share_memory=False,
        )
        routes = StarRoutes(self._star, among)
        mesh = meshes.connect(config, self._star.listener, deadline, routes)
        routes.name_root(mesh.control.values())
        return mesh

    @property
    def hub(self) -> int:
        """The rank of the group that relays for others; -1 if it is no member."""
        return self._ranks.index(0) if 0 in self._ranks else -1

    def close(self) -> None:
        """See Connector. The last group that uses a star leaves it."""
        if not self._is_open:
            return
        self._is_open = False
        with _lock:
            is_last = self._star.remove_user()
            if is_last:
                for rank in [r for r, star in _in_use.items() if star is self._star]:
                    del _in_use[rank]
                _left[:] = [*(s for s in _left if not s.has_left()), self._star]
        if is_last:
            self._star.close()


def in_star_of_world(ranks: Sequence[int], rank: int) -> StarConnector | None:
    """Return a connector in the star that this process is in, if it has all ranks.

    ``ranks`` are the members of the new group in torch's world.
    """
    with _lock:
        star = _in_use.get(ranks[rank])
        if star is None or max(ranks) >= star.member.size:
            return None
        star.add_user()
        return StarConnector(star, ranks)


def in_new_star(star: Star, world_rank: int | None = None) -> StarConnector:
    """Return the connector of a new star; later groups share it with ``world_rank``."""
    at_end["grpc"] = wait_for_stars
    if world_rank is not None:
        with _lock:
            _in_use[world_rank] = star
    return StarConnector(star, range(star.member.size))


def wait_for_stars() -> None:
    """Wait, at the end of the program, until no worker needs this rank any more."""
    deadline = Deadline.after(LINGER_S)
    with _lock:
        stars = list(_left)
        _left.clear()
    for star in stars:
        star.wait_until_left(deadline.left_s())
