"""Stages whose optimizer state is sharded over the replicas of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.layers import Layer
from ringleader.parallel.pipeline.stage_module import StageModule


def shard_stages(stages: Sequence[StageModule], mesh: DeviceMesh) -> None:
    """Shard the parameters of each stage over the ranks of ``mesh``.

    They are gathered once per step, for all micro-batches, and gradients are scattered
    once at its end: each micro-batch by itself would cost as much traffic again.
    """
    for stage in stages:
        if any(True for _ in stage.parameters()):
            fully_shard(stage, mesh=mesh, reshard_after_forward=False)


def check_shardable(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Raise ConfigError for parameters that cannot be sharded in a pipeline."""
    uses = Counter(p for layer in layers for p in set(layer.module.parameters()))
    for name, parameter in model.named_parameters():
        if uses[parameter] > 1:
            text = f"pipeline+fsdp: {name} is shared between layers, and a shard of it"
            raise ConfigError(f"{text} cannot be in two stages; use pipeline+ddp")
        if parameter.ndim == 0:
            text = f"pipeline+fsdp: {name} has no dimensions and cannot be sharded"
            raise ConfigError(f"{text}; give it the shape [1], or use pipeline+ddp")
