"""The ranks of the world as a grid: stages of a pipeline, data shares, tensor shards.

Ranks of one tensor group are neighbours, because they communicate most. The data
dimension has two parts: ``replicate`` copies of ``shard`` shards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ringleader.errors import ConfigError

DIMENSIONS = ("stage", "replicate", "shard", "tensor")


@dataclass(frozen=True)
class Grid:
    """The sizes of the dimensions, and the ranks in the order of the grid."""

    rank: int
    ranks: tuple[int, ...]
    stage: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def data(self) -> int:
        """The number of ranks, or groups of ranks, with batches of their own."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Return which share of the data a rank has."""
        return self.ranks.index(rank) // self.tensor % self.data

    def stage_of(self, rank: int) -> int:
        """Return which stage of a pipeline a rank has."""
        return self.ranks.index(rank) // (self.tensor * self.data)

    def mesh(self, device: str, names: Sequence[str]) -> DeviceMesh:
        """Return torch's mesh of these dimensions; the others must have size 1.

        All ranks must call it, because it forms process groups.
        """
        sizes = [int(getattr(self, name)) for name in names]
        assert math.prod(sizes) == len(self.ranks), (names, self)
        ranks = torch.tensor(self.ranks, device="cpu").view(sizes)
        return DeviceMesh(device, ranks, mesh_dim_names=tuple(names))

    @cached_property
    def data_group(self) -> dist.ProcessGroup:
        """The ranks with the same part of the model and other data.

        All ranks must ask for it, because it forms process groups.
        """
        world = dist.group.WORLD
        assert world is not None
        if self.data == len(self.ranks):
            return world
        mine = world
        parts = torch.tensor(self.ranks).view(self.stage, self.data, self.tensor)
        for column in parts.transpose(1, 2).reshape(-1, self.data).tolist():
            group = dist.new_group(column)
            if self.rank in column:
                assert isinstance(group, dist.ProcessGroup)
                mine = group
        return mine


def divide(world: int, part: int, what: str) -> int:
    """Return ``world / part``; ConfigError unless it is a whole number."""
    if world % part:
        raise ConfigError(
            f"{world} ranks cannot be divided into {what} of {part}; start a multiple "
            f"of {part} ranks or change {what}"
        )
    return world // part


def hybrid_sizes(hosts: Sequence[Sequence[int]], tensor: int) -> tuple[int, int]:
    """Return replicas and shards such that the shards of a replica share a host.

    Hosts may have different numbers of ranks: the replicas have the size of their
    greatest common divisor.
    """
    counts = [len(host) for host in hosts]
    common = math.gcd(*counts)
    text = f"the hosts have {', '.join(map(str, counts))} ranks"
    if common % tensor:
        raise ConfigError(f"shard='hybrid': {text}, no multiple of tensor={tensor}")
    if common == tensor:
        raise ConfigError(
            f"shard='hybrid': {text}, so that no equal groups of ranks inside a host "
            "can share the model; use shard='full', or 'ddp'"
        )
    return sum(counts) // common, common // tensor


def check_hosts(hosts: Sequence[Sequence[int]], world: int) -> None:
    """Raise ConfigError unless every rank is on exactly one host."""
    if sorted(rank for host in hosts for rank in host) != list(range(world)):
        raise ConfigError(
            f"hosts is {[list(host) for host in hosts]}; each of the ranks 0 to "
            f"{world - 1} must be in one list"
        )
