"""The collectives that compression needs, over a Group or any torch process group.

``GroupCommunicator`` uses a ringleader group, which has codecs and moves host memory.
``TorchCommunicator`` uses another backend's process group, which moves tensors of the
device they are on.
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

from ringleader.backend import host_memory
from ringleader.backend.process_group import RingleaderGroup
from ringleader.compression.sparse_format import Bytes
from ringleader.engine.arrays import as_array
from ringleader.errors import ConfigError
from ringleader.groups.group import Group, handle_of

AnyGroup = Group | dist.ProcessGroup | None
"""The group argument of public functions; None is torch's default group."""


HALF_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""The codecs that every backend supports, as tensors of another dtype."""


class Communicator(Protocol):
    """Collectives among the ranks of a group. All ranks make the same calls."""

    rank: int
    size: int
    accepts_residual: bool
    """Whether ``average_coded`` adds a ``residual``."""

    def average(self, tensor: Tensor) -> None:
        """Average ``tensor`` over all ranks, in place."""
        ...

    def average_coded(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """Average ``tensor`` over all ranks in place, encoded by ``codec`` on the way.

        ``residual`` is added to ``tensor`` first; pass None unless ``accepts_residual``
        is true. ``error_out`` receives the error of this rank's encodings. All tensors
        are flat float32. All ranks end with the same bits.
        """
        ...

    def all_gather_bytes(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Return the bytes of every rank; all ranks know the ``lengths``."""
        ...

    def all_to_all_bytes(
        self, parts: Sequence[Bytes], lengths: Sequence[int]
    ) -> list[Bytes]:
        """Send ``parts[i]`` to rank i; return the ``lengths[i]`` bytes it sent us."""
        ...


def all_gather_ints(comm: Communicator, numbers: Sequence[int]) -> list[list[int]]:
    """Return the integers of every rank; all ranks pass equally many."""
    mine = np.array(numbers, "<i8").view(np.uint8)
    gathered = comm.all_gather_bytes(mine, [len(mine)] * comm.size)
    return [data.view("<i8").tolist() for data in gathered]


class GroupCommunicator:
    """Collectives of a ringleader group. Device tensors go through host memory.

    ``process_group`` is torch's view of the group, if it has one. It stages long device
    tensors in chunks. Either all ranks pass it or none, whatever their devices.
    """

    def __init__(
        self, group: Group, process_group: RingleaderGroup | None = None
    ) -> None:
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._process_group = process_group
        # If any rank has a device, all ranks cut their tensors into chunks.
        self.accepts_residual = process_group is None or not process_group.is_staged

    def auto_codec(self, num_bytes: int) -> str | None:
        """The codec that "auto" stands for in ``average_coded``."""
        return handle_of(self._group).auto_codec("all_reduce", num_bytes)

    def average(self, tensor: Tensor) -> None:
        """Average ``tensor`` by one all_reduce."""
        host_memory.check(tensor, "all_reduce")
        host = tensor.cpu()  # the same tensor, if it is on the CPU
        self._group.all_reduce(host, "mean")
        if host is not tensor:
            tensor.copy_(host)

    def average_coded(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """Average ``tensor`` by one all_reduce with the codec inside."""
        if codec == "fp16":
            self._average_fp16(tensor, residual, error_out)
        elif self.accepts_residual and tensor.is_cpu:
            self._group.all_reduce(
                tensor, "mean", codec=codec, residual=residual, error_out=error_out
            )
        else:
            self._all_reduce_coded(tensor, codec, error_out, "mean")

    def _average_fp16(
        self, tensor: Tensor, residual: Tensor | None, error_out: Tensor | None
    ) -> None:
        """Divide by the size first: the encoded sum could overflow."""
        if residual is not None:
            np.add(as_array(tensor), as_array(residual), as_array(tensor))
        _multiply(tensor, 1 / self.size)
        self._all_reduce_coded(tensor, "fp16", error_out, "sum")
        if error_out is not None:
            _multiply(error_out, self.size)

    def _all_reduce_coded(
        self, tensor: Tensor, codec: str, error_out: Tensor | None, op: str
    ) -> None:
        if self._process_group is not None:
            work = self._process_group.allreduce_coded(
                tensor, codec, op=op, error_out=error_out
            )
            work.wait()
            return
        host_memory.check(tensor, "all_reduce")
        host, host_error = tensor.cpu(), error_out
        if error_out is not None and not error_out.is_cpu:
            host_error = torch.empty_like(host)
        self._group.all_reduce(host, op, codec=codec, error_out=host_error)
        if host is not tensor:
            tensor.copy_(host)
        if host_error is not error_out:
            assert error_out is not None
            assert host_error is not None
            error_out.copy_(host_error)

    def all_gather_bytes(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Gather by one all_gather."""
        outs = [torch.empty(n, dtype=torch.uint8, device="cpu") for n in lengths]
        self._group.all_gather(outs, torch.from_numpy(mine))
        return [as_array(out) for out in outs]

    def all_to_all_bytes(
        self, parts: Sequence[Bytes], lengths: Sequence[int]
    ) -> list[Bytes]:
        """Exchange by one all_to_all."""
        outs = [torch.empty(n, dtype=torch.uint8, device="cpu") for n in lengths]
        self._group.all_to_all(outs, [torch.from_numpy(part) for part in parts])
        return [as_array(out) for out in outs]


def _multiply(tensor: Tensor, factor: float) -> None:
    if tensor.is_cpu:  # numpy starts no threads
        array = as_array(tensor)
        array *= np.float32(factor)
    else:
        tensor.mul_(factor)


class TorchCommunicator:
    """Collectives of another backend's process group, on tensors of ``device``."""

    accepts_residual = False

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._group = group
        self._device = device

    def average(self, tensor: Tensor) -> None:
        """Average by a sum and a division: the backend may not support AVG."""
        there = tensor.to(self._device)
        dist.all_reduce(there, group=self._group)
        tensor.copy_(there.div_(self.size))

    def average_coded(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """Average in fp16 or bf16. The error of the sum itself is not reported."""
        narrow = self._encode(tensor, codec, error_out)
        dist.all_reduce(narrow, group=self._group)
        tensor.copy_(narrow)

    def _encode(self, tensor: Tensor, codec: str, error_out: Tensor | None) -> Tensor:
        """Divide by the size while still in float32, as the sum could overflow."""
        narrow = (tensor / self.size).to(HALF_DTYPES[codec])
        if error_out is not None:
            torch.sub(tensor, narrow.to(torch.float32), alpha=self.size, out=error_out)
            error_out.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return narrow

    def all_gather_bytes(self, mine: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Gather with padding: not every backend accepts different lengths."""
        longest = max(lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device="cpu")
        padded[: len(mine)] = torch.from_numpy(mine)
        source = padded.to(self._device)
        outs = [torch.empty_like(source) for _ in lengths]
        dist.all_gather(outs, source, group=self._group)
        pairs = zip(outs, lengths, strict=True)
        return [as_array(out.cpu())[:length] for out, length in pairs]

    def all_to_all_bytes(
        self, parts: Sequence[Bytes], lengths: Sequence[int]
    ) -> list[Bytes]:
        """Exchange by one all_to_all_single."""
        source = torch.from_numpy(np.concatenate(parts)).to(self._device)
        out = torch.empty(sum(lengths), dtype=torch.uint8, device=self._device)
        splits = [len(part) for part in parts]
        dist.all_to_all_single(out, source, list(lengths), splits, group=self._group)
        edges = np.cumsum([0, *lengths]).tolist()
        host = as_array(out.cpu())
        return [host[a:b] for a, b in pairwise(edges)]


class AsyncTorchCommunicator(TorchCommunicator):
    """Starts the all_reduce of ``average_coded`` without waiting for it.

    ``narrow`` holds the result when the future of ``started`` is done.
    """

    narrow: Tensor

    def average_coded(
        self,
        tensor: Tensor,
        codec: str,
        residual: Tensor | None,
        error_out: Tensor | None,
    ) -> None:
        """Start the all_reduce; ``tensor`` is not changed."""
        self.narrow = self._encode(tensor, codec, error_out)
        self._work = dist.all_reduce(self.narrow, group=self._group, async_op=True)

    def started(self) -> Future[Any]:
        """Return the future of the all_reduce."""
        future: Future[Any] = self._work.get_future()
        return future


def default_group() -> dist.ProcessGroup:
    """Return torch's default group; ConfigError if there is none."""
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        text = "there is no default group; call init_process_group, or pass a group"
        raise ConfigError(f"compression: {text}")
    return group


def make_communicator(
    group: Group | dist.ProcessGroup, device: torch.device, codec: str = ""
) -> Communicator:
    """Create a communicator of ``group`` for tensors on ``device``.

    Raises ConfigError if the backend of ``group`` does not support ``codec``.
    """
    if isinstance(group, Group):
        return GroupCommunicator(group)
    if isinstance(group, RingleaderGroup):
        return GroupCommunicator(group.group, group)
    if codec and codec not in HALF_DTYPES:
        raise ConfigError(
            f"compression: {codec!r} needs the ringleader backend, and the backend of "
            f"this group is {group.name()!r}: use init_process_group('ringleader'), "
            "or one of bf16, fp16, topk, randomk, powersgd"
        )
    return TorchCommunicator(group, device)
