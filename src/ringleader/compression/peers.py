"""The other ranks, as compression needs them: ours, or any that torch has.

Two kinds: a ``Group`` of ours, which knows codecs and moves host memory, and a process
group of torch's, which moves tensors of whatever device they are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ringleader.backend.process_group import RingleaderGroup
from ringleader.compression.entries import Bytes
from ringleader.engine.arrays import as_array
from ringleader.errors import ConfigError
from ringleader.groups.group import Group

Ranks = Group | dist.ProcessGroup | None
"""What users pass; None is torch's default group."""


HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""The codecs that any backend can do, as tensors of another dtype."""


class Peers(Protocol):
    """Collectives on which compression is built. All ranks make the same calls."""

    rank: int
    size: int
    adds: bool
    """Whether ``coded_mean`` takes a ``residual``."""

    def mean(self, tensor: Tensor) -> None:
        """Average everybody's ``tensor``, in place."""
        ...

    def coded_mean(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """The same, encoded on the way; ``error_out`` gets the error of this rank's
        encodings, and ``residual`` is added on top if this kind of peers ``adds``.

        All float32, flat. In the end all ranks hold the same bits.
        """
        ...

    def gather(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Everybody's bytes, of lengths that all ranks know."""
        ...

    def swap(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """What each rank has for us: its bytes of ``lengths``; they get ``parts``."""
        ...


def gather_numbers(peers: Peers, numbers: Sequence[int]) -> list[list[int]]:
    """Everybody's whole numbers; as many from each."""
    mine = np.array(numbers, "<i8").view(np.uint8)
    gathered = peers.gather(mine, [len(mine)] * peers.size)
    return [data.view("<i8").tolist() for data in gathered]


class GroupPeers:
    """The ranks of a group of ours. Tensors of a device go through host memory.

    ``process_group`` is how torch sees it, if it does: it moves long tensors of a
    device in pieces. Then all ranks have one, whatever their devices.
    """

    def __init__(
        self, group: Group, process_group: RingleaderGroup | None = None
    ) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._process_group = process_group
        # Where some rank has a device, tensors are cut to pieces for all.
        self.adds = process_group is None or not process_group.is_staged

    def mean(self, tensor: Tensor) -> None:
        """An all_reduce."""
        host = tensor.cpu()  # itself, if it is there
        self._group.all_reduce(host, "mean")
        if host is not tensor:
            tensor.copy_(host)

    def coded_mean(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """An all_reduce with the codec inside."""
        if codec == "fp16":
            self._divided(tensor, residual, error_out)
        elif self.adds and tensor.is_cpu:
            self._group.all_reduce(
                tensor, "mean", codec=codec, residual=residual, error_out=error_out
            )
        else:
            self._coded(tensor, codec, error_out, "mean")

    def _divided(
        self, tensor: Tensor, residual: Tensor | None, error_out: Tensor | None
    ) -> None:
        """By the size before: a sum that is encoded on its way could overflow."""
        if residual is not None:
            np.add(as_array(tensor), as_array(residual), as_array(tensor))
        _multiply(tensor, 1 / self.size)
        self._coded(tensor, "fp16", error_out, "sum")
        if error_out is not None:
            _multiply(error_out, self.size)

    def _coded(
        self, tensor: Tensor, codec: str, error_out: Tensor | None, op: str
    ) -> None:
        if self._process_group is not None:
            work = self._process_group.allreduce_coded(
                tensor, codec, op=op, error_out=error_out
            )
            work.wait()
            return
        host = tensor.cpu()
        left = (
            error_out
            if error_out is None or error_out.is_cpu
            else torch.empty_like(host)
        )
        self._group.all_reduce(host, op, codec=codec, error_out=left)
        if host is not tensor:
            tensor.copy_(host)
        if error_out is not None and left is not None and left is not error_out:
            error_out.copy_(left)

    def gather(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """An all_gather."""
        outs = [torch.empty(n, dtype=torch.uint8, device="cpu") for n in lengths]
        self._group.all_gather(outs, torch.from_numpy(mine))
        return [as_array(out) for out in outs]

    def swap(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """An all_to_all."""
        outs = [torch.empty(n, dtype=torch.uint8, device="cpu") for n in lengths]
        self._group.all_to_all(outs, [torch.from_numpy(part) for part in parts])
        return [as_array(out) for out in outs]


def _multiply(tensor: Tensor, by: float) -> None:
    if tensor.is_cpu:  # by numpy, which starts no threads
        array = as_array(tensor)
        array *= np.float32(by)
    else:
        tensor.mul_(by)


class TorchPeers:
    """The ranks of a process group of torch's. Its tensors stay on ``device``."""

    adds = False

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._group = group
        self._device = device

    def mean(self, tensor: Tensor) -> None:
        """An all_reduce; the backend may have no mean."""
        there = tensor.to(self._device)
        dist.all_reduce(there, group=self._group)
        tensor.copy_(there.div_(self.size))

    def coded_mean(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """fp16 and bf16 only, summed in that format; what the sum loses is not ours."""
        narrow = self._narrow(tensor, codec, error_out)
        dist.all_reduce(narrow, group=self._group)
        tensor.copy_(narrow)

    def _narrow(self, tensor: Tensor, codec: str, error_out: Tensor | None) -> Tensor:
        """What this rank sends: divided while still wide, as the sum could overflow."""
        narrow = (tensor / self.size).to(HALVES[codec])
        if error_out is not None:
            torch.sub(tensor, narrow.to(torch.float32), alpha=self.size, out=error_out)
            error_out.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return narrow

    def gather(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """An all_gather, padded: not every backend takes different lengths."""
        longest = max(lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        padded[: len(mine)] = torch.from_numpy(mine)
        source = padded.to(self._device)
        outs = [torch.empty_like(source) for _ in lengths]
        dist.all_gather(outs, source, group=self._group)
        pairs = zip(outs, lengths, strict=True)
        return [as_array(out.cpu())[:length] for out, length in pairs]

    def swap(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """An all_to_all."""
        source = torch.from_numpy(np.concatenate(parts)).to(self._device)
        out = torch.empty(sum(lengths), dtype=torch.uint8, device=self._device)
        splits = [len(part) for part in parts]
        dist.all_to_all_single(out, source, list(lengths), splits, group=self._group)
        edges = np.cumsum([0, *lengths]).tolist()
        host = as_array(out.cpu())
        return [host[a:b] for a, b in pairwise(edges)]


class LaterPeers(TorchPeers):
    """The same, but a coded mean is only started: ``narrow`` holds it when ``started``
    has ended.
    """

    narrow: Tensor

    def coded_mean(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """Leaves ``tensor`` as it is."""
        self.narrow = self._narrow(tensor, codec, error_out)
        self._work = dist.all_reduce(self.narrow, group=self._group, async_op=True)

    def started(self) -> Future[Any]:
        """The outcome of the all_reduce."""
        future: Future[Any] = self._work.get_future()
        return future


def default_group() -> dist.ProcessGroup:
    """The group that None stands for."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        text = "there is no default group; call init_process_group, or pass a group"
        raise ConfigError(f"compression: {text}")
    return group


def our_group(group: Group | dist.ProcessGroup) -> Group | None:
    """Our group, itself or behind torch's; None for another backend's."""
    if isinstance(group, RingleaderGroup):
        return group.group
    return group if isinstance(group, Group) else None


def peers_of(
    group: Group | dist.ProcessGroup, device: torch.device, codec: str = ""
) -> Peers:
    """The ranks of ``group``, for tensors on ``device``; all know ``codec``."""
    if isinstance(group, Group):
        return GroupPeers(group)
    if isinstance(group, RingleaderGroup):
        return GroupPeers(group.group, group)
    if codec and codec not in HALVES:
        raise ConfigError(
            f"compression: {codec!r} acts inside our own collectives, and the backend "
            f"of this group is {group.name()!r}: use init_process_group('ringleader'), "
            "or one of bf16, fp16, topk, randomk, powersgd"
        )
    return TorchPeers(group, device)
