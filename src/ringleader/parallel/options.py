"""What the user asks of ``parallelize``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError

STRATEGIES = ("ddp", "fsdp", "tensor", "fsdp+tensor", "ddp+tensor")

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}

SHARDINGS = ("full", "grad", "hybrid")

Loss = Callable[[Any, Any], Tensor]
"""``loss(output, target)``: the mean over the rows of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of ``parallelize``; None where the user said nothing."""

    strategy: str
    loss: Loss | None = None
    microbatches: int = 1
    clip: float | None = None
    precision: str | None = None
    batch_norm: str = "sync"
    shard: str | None = None
    hosts: Sequence[Sequence[int]] | None = None
    prefetch: int | None = None
    blocks: Sequence[type[nn.Module]] | None = None
    tensor: int | None = None
    plan: Mapping[str, Any] | None = None

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
        return [f"{name}: {_text(value)}" for name, value in named if name != "loss"]


OWNERS = {
    "shard": "fsdp",
    "hosts": "fsdp",
    "prefetch": "fsdp",
    "blocks": "fsdp",
    "tensor": "tensor",
    "plan": "tensor",
}
"""Options that only one strategy has."""


def check(options: Options) -> None:
    """Raise ConfigError for options that no world could run."""
    _choice("strategy", options.strategy, STRATEGIES)
    for name, owner in OWNERS.items():
        if getattr(options, name) is not None and owner not in options.parts:
            raise ConfigError(
                f"{name}= is an option of {owner!r}, and the strategy is "
                f"{options.strategy!r}"
            )
    _choice("precision", options.precision, (None, *PRECISIONS))
    _choice("batch_norm", options.batch_norm, ("sync", "local"))
    _choice("shard", options.shard, (None, *SHARDINGS))
    if options.hosts is not None and options.shard != "hybrid":
        raise ConfigError("hosts= is for shard='hybrid'")
    if options.clip is not None and options.clip <= 0:
        raise ConfigError(f"clip is {options.clip}; give a norm above 0, or None")
    for name, least in (("microbatches", 1), ("prefetch", 0), ("tensor", 1)):
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
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    return type(value).__qualname__
