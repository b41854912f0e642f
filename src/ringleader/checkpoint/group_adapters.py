"""The few operations that checkpoints need of a group: torch's or ours."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ringleader.groups.group import Group

AnyGroup = dist.ProcessGroup | Group


class Work(Protocol):
    """An operation that was begun."""

    def wait(self) -> object:
        """Return when it has ended; raise if it failed."""
        ...


class Ranks(Protocol):
    """The ranks of a group."""

    rank: int
    size: int
    device: torch.device
    """Where tensors must be that are sent."""

    def all_gather(self, outs: list[Tensor], mine: Tensor) -> None:
        """Copy the tensors of all ranks to ``outs``."""
        ...

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Copy the tensor of one rank to all."""
        ...

    def send(self, tensor: Tensor, target: int) -> Work:
        """Begin to send a tensor."""
        ...

    def receive(self, tensor: Tensor, source: int) -> Work:
        """Begin to receive a tensor."""
        ...


def ranks_of(group: AnyGroup) -> Ranks:
    """Return the operations of a group."""
    return _OurRanks(group) if isinstance(group, Group) else _TorchRanks(group)


class _TorchRanks:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.device = torch.device("cpu")
        if self.device not in group._device_types:
            kind = group._device_types[0].type
            self.device = torch.device(kind, torch.accelerator.current_device_index())

    def all_gather(self, outs: list[Tensor], mine: Tensor) -> None:
        dist.all_gather(outs, mine, group=self._group)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        dist.broadcast(tensor, group=self._group, group_src=source)

    def send(self, tensor: Tensor, target: int) -> Work:
        work = dist.isend(tensor, group=self._group, group_dst=target)
        assert work is not None, "this rank is in the group"
        return work

    def receive(self, tensor: Tensor, source: int) -> Work:
        work = dist.irecv(tensor, group=self._group, group_src=source)
        assert work is not None, "this rank is in the group"
        return work


class _OurRanks:
    device = torch.device("cpu")

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size

    def all_gather(self, outs: list[Tensor], mine: Tensor) -> None:
        self._group.all_gather(outs, mine)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        self._group.broadcast(tensor, source)

    def send(self, tensor: Tensor, target: int) -> Work:
        return self._group.send(tensor, target, async_op=True)

    def receive(self, tensor: Tensor, source: int) -> Work:
        return self._group.recv(tensor, source, async_op=True)
