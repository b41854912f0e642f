"""Gradients of fully sharded models (FSDP2) in fewer bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringleader.backend.torch_options import reduction
from ringleader.compression.chance import purpose
from ringleader.compression.peers import our_group
from ringleader.compression.scheme import parse
from ringleader.errors import ConfigError

CODECS = ("bf16", "fp16", "int8", "int8-stochastic", "auto")


def fsdp(model: nn.Module, name: str, *, seed: int = 0) -> None:
    """Reduce the gradients of ``model`` through the codec ``name`` from now on.

    Call it after ``fully_shard``. Parameters are gathered as before, and so is what
    HSDP averages between replicas.

    There is no error feedback: a residual is as large as the gradients before they are
    scattered, the whole model in float32 on every rank, which is what sharding is meant
    to avoid. So only codecs whose loss is small are here; "int8-stochastic" is right on
    average, where "int8" rounds to the nearest.
    """
    codec = parse(name).codec
    if codec not in CODECS:
        text = f"takes one of {', '.join(CODECS)}, not {name!r}: without error feedback"
        raise ConfigError(f"compression: a sharded model {text} others lose too much")
    from torch.distributed.fsdp import FSDPModule  # takes 0.7 s

    modules = [each for each in model.modules() if isinstance(each, FSDPModule)]
    if not modules:
        raise ConfigError("compression: the model is not sharded; call fully_shard")
    for number, module in enumerate(modules):
        start = purpose(seed, 0, f"fsdp {number}")
        # torch asks for a class of its own, and calls whatever it gets.
        reduce: Any = CodedReduceScatter(codec, start)
        module.set_custom_reduce_scatter(reduce)


class CodedReduceScatter:
    """What FSDP2 calls to reduce the gradients of one module."""

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
        """Memory for a call."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Done when it returns, whatever ``async_op`` says: there is no handle."""
        ours, kind, codec = our_group(group), reduction(op), self._codec
        if ours is None:
            raise ConfigError(
                f"compression: {codec!r} acts inside our own collectives, and the "
                f"backend of this group is {group.name()!r}: use "
                "init_process_group('ringleader'), or MixedPrecisionPolicy"
                "(reduce_dtype=torch.bfloat16)"
            )
        if codec == "int8-stochastic":
            codec = f"{codec}:{purpose(self._seed, next(self._calls), '')}"
        if kind.factor is not None:
            input_tensor.mul_(kind.factor)
        with torch.no_grad():
            source = input_tensor.cpu()  # itself, if it is there
            out = output_tensor
            if not out.is_cpu:
                out = torch.empty_like(out, device="cpu")
            ours.reduce_scatter(out, source, kind.name, codec=codec)
            if out is not output_tensor:
                output_tensor.copy_(out)
