"""What the user asks of ``parallelize``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.errors import ConfigError

STRATEGIES = (
    "ddp",
    "fsdp",
    "tensor",
    "pipeline",
    "fsdp+tensor",
    "ddp+tensor",
    "pipeline+ddp",
    "pipeline+fsdp",
)

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}

SCHEDULES = ("gpipe", "1f1b", "interleaved")

SHARDINGS = ("full", "grad", "hybrid")

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, target)``: the mean over the rows of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of ``parallelize``; None where the user said nothing."""

    strategy: str
    optimizer: MakeOptimizer
    loss: Loss | None = None
    microbatches: int | None = None
    clip: float | None = None
    precision: str | None = None
    batch_norm: str = "sync"
    shard: str | None = None
    hosts: Sequence[Sequence[int]] | None = None
    prefetch: int | None = None
    blocks: Sequence[type[nn.Module]] | None = None
    tensor: int | None = None
    plan: Mapping[str, Any] | None = None
    schedule: str | None = None
    stages: int | None = None
    stages_per_rank: int | None = None
    layers: Sequence[str | nn.Module] | None = None
    split: Sequence[int] | None = None
    example: Sequence[Any] | None = None
    dry_run: bool = False

    @property
    def parts(self) -> list[str]:
        """The strategies that are combined."""
        return self.strategy.split("+")

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype to compute in; None for that of the parameters."""
        return PRECISIONS[self.precision] if self.precision else None

    def lines(self) -> list[str]:
        """Return what must be equal on all ranks, a line per option."""
        named = [(each.name, getattr(self, each.name)) for each in fields(self)]
        functions = ("loss", "optimizer")  # which have no text
        told = [(name, value) for name, value in named if name not in functions]
        return [f"{name}: {_text(value)}" for name, value in told]


OWNERS = {
    "shard": "fsdp",
    "hosts": "fsdp",
    "prefetch": "fsdp",
    "blocks": "fsdp",
    "tensor": "tensor",
    "plan": "tensor",
    "schedule": "pipeline",
    "stages": "pipeline",
    "stages_per_rank": "pipeline",
    "layers": "pipeline",
    "split": "pipeline",
}
"""Options that only one strategy has."""


LEAST = {"microbatches": 1, "prefetch": 0, "tensor": 1, "stages": 1}


def check(options: Options) -> None:
    """Raise ConfigError for options that no world could run."""
    _choice("strategy", options.strategy, STRATEGIES)
    # The stages of a pipeline are sharded whole, and replicas are what is left over.
    owners = ["pipeline"] if "pipeline" in options.parts else options.parts
    for name, owner in OWNERS.items():
        if getattr(options, name) is not None and owner not in owners:
            raise ConfigError(
                f"{name}= is an option of {owner!r}, and the strategy is "
                f"{options.strategy!r}"
            )
    _choice("precision", options.precision, (None, *PRECISIONS))
    _choice("batch_norm", options.batch_norm, ("sync", "local"))
    _choice("schedule", options.schedule, (None, *SCHEDULES))
    _choice("shard", options.shard, (None, *SHARDINGS))
    if options.hosts is not None and options.shard != "hybrid":
        raise ConfigError("hosts= is for shard='hybrid'")
    if options.clip is not None and options.clip <= 0:
        raise ConfigError(f"clip is {options.clip}; give a norm above 0, or None")
    for name, least in LEAST.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"{name} is {value}; at least {least}")


def _choice(name: str, value: str | None, known: Sequence[str | None]) -> None:
    if value not in known:
        names = ", ".join(repr(each) for each in known)
        raise ConfigError(f"{name} is {value!r}; choose one of: {names}")


def _text(value: object) -> str:
    """Return a value as text without addresses, which differ between processes."""
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, Mapping):
        entries = [f"{key}: {_text(each)}" for key, each in value.items()]
        return "{" + ", ".join(entries) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(each) for each in value) + "]"
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    return type(value).__qualname__
