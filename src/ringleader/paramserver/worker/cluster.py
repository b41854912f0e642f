"""Cluster: the machines behind one worker, which compute its assignments together.

One process on each machine, in torch's default group. The leader, the lowest rank that
is alive, talks to the server and gives orders; the others follow. Under ``ringleader
run --survive`` the collectives complete among those that are alive, with the same
result on all of them. So all learn of a loss by the same sum, and agree on the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.decoding import from_json
from ringleader.errors import ConfigError, ProtocolError
from ringleader.paramserver.protocol.manifest import Vector
from ringleader.paramserver.protocol.messages import Assignment, JoinAnswer
from ringleader.rounds.round_length import split_by_speed
from ringleader.settings.run import run_settings

_ORDER_BYTES = 1 << 16
_PATIENCE = timedelta(days=7)
"""The leader may wait for the server for long. A lost machine is noticed before."""
_SMOOTHING = 0.3


class LeaderLost(Exception):
    """The leader is gone: its order is void."""


class Order(msgspec.Struct, frozen=True):
    """What the leader tells the others to do."""

    run: JoinAnswer | None = None
    """The worker that the cluster is; None: nothing, the leader is lost."""
    assignment: Assignment | None = None
    """What to compute; None: training is over."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the machines that are alive."""

    values: Vector
    num_samples: int


class Cluster:
    """This process among those of its cluster. One thread."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.living = list(range(size))
        """Ranks that took part in the last sum."""
        self._size = size
        self._speeds = [0.0] * size
        """Samples per second of each rank; 0: not measured."""

    @classmethod
    def open(cls) -> Self:
        """Form the group of the processes that ``ringleader run`` started."""
        if run_settings() is None:
            text = "--cluster: start it on every machine of the cluster by: ringleader"
            raise ConfigError(f"{text} run --survive -m ringleader work LINK --cluster")
        dist.init_process_group("ringleader", timeout=_PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size())

    def close(self, *, is_over: bool) -> None:
        """Leave the group; at the end of training once the others have all results."""
        world = dist.group.WORLD
        if not is_over and world is not None:
            world.abort()  # the others go on
        dist.destroy_process_group()

    @property
    def leader(self) -> int:
        """The rank that talks to the server."""
        return min(self.living)

    @property
    def is_leader(self) -> bool:
        """True if this process talks to the server."""
        return self.rank == self.leader

    def exchange(self, mine: Order) -> Order:
        """Return the leader's order, which is ``mine`` on the leader.

        Raises LeaderLost if it was lost before all had its order.
        """
        data = msgspec.json.encode(mine if self.is_leader else Order())
        room = torch.zeros(_ORDER_BYTES, dtype=torch.uint8)
        room[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(room, self.leader)
        text = room.numpy().tobytes().rstrip(b"\0")
        try:
            order = from_json(text, Order)
        except msgspec.MsgspecError as exc:
            raise ProtocolError(self.leader, f"ordered {text[:80]!r}: {exc}") from exc
        if order.run is None:
            self._count_living()
            raise LeaderLost
        return order

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Set tensors to those of the leader."""
        for tensor in tensors:
            dist.broadcast(tensor, self.leader)

    def part_of(self, indices: Tensor) -> Tensor:
        """Return which samples of a batch this process computes, by its speed."""
        speeds = [self._speeds[rank] for rank in self.living]
        counts = split_by_speed(len(indices), speeds)
        place = self.living.index(self.rank)
        return indices[sum(counts[:place]) : sum(counts[: place + 1])]

    def sum(self, values: Vector, num_samples: int, seconds: float) -> Sums | None:
        """Return the sums over all machines; None if one was lost, to begin again.

        Raises LeaderLost if that was the leader.
        """
        table = np.zeros((3, self._size), np.float32)
        table[:, self.rank] = 1, num_samples, seconds
        total = torch.from_numpy(np.concatenate([values, table.ravel()]))
        dist.all_reduce(total)
        summed = total.numpy()
        present, counts, times_s = summed[len(values) :].reshape(3, self._size)
        if self._note(np.flatnonzero(present).tolist()):
            return None
        for rank in np.flatnonzero((counts > 0) & (times_s > 0)):
            speed, old = float(counts[rank] / times_s[rank]), self._speeds[rank]
            self._speeds[rank] = old + _SMOOTHING * (speed - old) if old else speed
        return Sums(summed[: len(values)], int(counts.sum()))

    def _note(self, living: list[int]) -> bool:
        """Note who is alive; True if somebody was lost. Raises LeaderLost."""
        leader, before = self.leader, self.living
        self.living = living
        if leader not in living:
            raise LeaderLost
        return living != before

    def _count_living(self) -> None:
        present = torch.zeros(self._size)
        present[self.rank] = 1
        dist.all_reduce(present)
        self.living = present.nonzero().flatten().tolist()
