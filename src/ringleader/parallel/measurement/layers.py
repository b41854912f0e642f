"""Finds the layers of a model that run one after the other, so that it can be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.sample import Sample
from ringleader.parallel.measurement.unchanged import unchanged

_ADVICE = (
    "name them in order, layers=['embedding', 'blocks.0', ..., 'head']: each must take "
    "what the one before returns"
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, and the name that it has in the model."""

    name: str
    module: nn.Module


def find_layers(
    model: nn.Module, named: Sequence[str | nn.Module] | None = None
) -> list[Layer]:
    """Return the layers of ``model`` in the order in which they run.

    These are the ``named`` ones; without them, the layers of an nn.Sequential, or else
    the model's children in the order of their definition, each nn.ModuleList and
    nn.Sequential taken apart. Raises ConfigError if a parameter is in none of them.
    """
    if named is not None:
        layers = [_named(model, each) for each in named]
    else:
        layers = parts_of(model)
    held = {p for layer in layers for p in layer.module.parameters()}
    for name, parameter in model.named_parameters():
        if parameter not in held:
            text = f"the parameter {name} is in no layer of the pipeline"
            raise ConfigError(f"{text}: {_ADVICE}")
    return layers


def _named(model: nn.Module, each: str | nn.Module) -> Layer:
    for name, module in model.named_modules(remove_duplicate=False):
        if each in (name, module) and name:
            return Layer(name, module)
    what = each if isinstance(each, str) else type(each).__name__
    raise ConfigError(f"layers: {what!r} is not a part of the model; {_ADVICE}")


def parts_of(model: nn.Module) -> list[Layer]:
    """Return the children of a model, lists and nn.Sequential taken apart."""
    return list(_parts("", model))


def _parts(prefix: str, module: nn.Module) -> Sequence[Layer]:
    """Return the layers of a container; another module is one layer."""
    is_container = isinstance(module, nn.ModuleList) or type(module) is nn.Sequential
    if prefix and not is_container:
        return [Layer(prefix, module)]
    children = module._modules.items()  # named_children() skips a second use
    dot = f"{prefix}." if prefix else ""
    return [
        layer
        for name, child in children
        if child is not None
        for layer in _parts(f"{dot}{name}", child)
    ]


def check_layers(model: nn.Module, layers: Sequence[Layer], sample: Sample) -> None:
    """Compare the model with its layers run in order, on a real micro-batch.

    Raises ConfigError if they differ in one bit. An nn.Sequential is its layers.
    """
    if type(model) is nn.Sequential:
        return
    with unchanged(model), torch.no_grad(), sample.precision():
        expected = model(*sample.inputs)
    value: Any = sample.inputs
    try:
        with unchanged(model), torch.no_grad(), sample.precision():
            for position, layer in enumerate(layers):
                value = layer.module(*(value if position == 0 else (value,)))
    except Exception as exc:
        text = f"the layers of the model do not run one after the other ({exc})"
        raise ConfigError(f"{text}; {_ADVICE}") from exc
    if not _equal(expected, value):
        text = "the model computes something else than its layers, one after the other"
        raise ConfigError(f"{text}; {_ADVICE}")


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one is other
