"""Gradient compression for fully sharded models (FSDP2)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringleader.backend import host_memory
from ringleader.backend.torch_options import reduction
from ringleader.backend.underlying_group import ringleader_group
from ringleader.compression.scheme import parse
from ringleader.compression.seeded_random import derive_seed
from ringleader.errors import ConfigError

CODECS = ("bf16", "fp16", "int8", "int8-stochastic", "auto")


def fsdp(model: nn.Module, name: str, *, seed: int = 0) -> None:
    """Reduce the gradients of ``model`` through the codec ``name`` from now on.

    Call it after ``fully_shard``. The all_gather of parameters, and the all_reduce
    between replicas of HSDP, are not compressed.

    There is no error feedback: a residual is as large as the gradients before they are
    scattered, the whole model in float32 on every rank, which sharding is meant to
    avoid. Only codecs with a small error are therefore accepted. "int8-stochastic" is
    unbiased; "int8" rounds to the nearest.
    """
    codec = parse(name).codec
    if codec not in CODECS:
        raise ConfigError(
            f"compression: a sharded model takes one of {', '.join(CODECS)}, not "
            f"{name!r}, whose error is too large without error feedback"
        )
    from torch.distributed.fsdp import FSDPModule  # takes 0.7 s

    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise ConfigError("compression: the model is not sharded; call fully_shard")
    for number, module in enumerate(modules):
        module_seed = derive_seed(seed, 0, f"fsdp {number}")
        # torch's annotation asks for a subclass; it only calls the object.
        reduce: Any = CodedReduceScatter(codec, module_seed)
        module.set_custom_reduce_scatter(reduce)


class CodedReduceScatter:
    """The reduce_scatter that FSDP2 calls for the gradients of one module."""

    def __init__(self, codec: str, seed: int) -> None:
        self._codec = codec
        self._seed = seed
        self._calls = itertools.count()

    def allocate(
        self,
        size: Sequence[int | torch.SymInt],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:
        """CompressorState for a call."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Reduce synchronously, whatever ``async_op`` says: there is no handle."""
        ours, kind, codec = ringleader_group(group), reduction(op), self._codec
        if ours is None:
            raise ConfigError(
                f"compression: {codec!r} needs the ringleader backend, and the "
                f"backend of this group is {group.name()!r}: use "
                "init_process_group('ringleader'), or MixedPrecisionPolicy"
                "(reduce_dtype=torch.bfloat16)"
            )
        if codec == "int8-stochastic":
            codec = f"{codec}:{derive_seed(self._seed, next(self._calls), '')}"
        if kind.factor is not None:
            input_tensor.mul_(kind.factor)
        with torch.no_grad():
            host_memory.check(input_tensor, "reduce_scatter")
            source = input_tensor.cpu()  # the same tensor, if it is on the CPU
            out = output_tensor
            if not out.is_cpu:
                out = torch.empty_like(out, device="cpu")
            ours.reduce_scatter(out, source, kind.name, codec=codec)
            if out is not output_tensor:
                output_tensor.copy_(out)
