"""The layers of one stage as a module, and the places of those of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from ringleader.errors import ConfigError
from ringleader.parallel.measurement.layers import Layer
from ringleader.parallel.measurement.leaves import changes_input, copy_inputs


class StageModule(nn.Module):
    """Runs the layers of a stage one after the other."""

    def __init__(
        self,
        layers: Sequence[Layer],
        precision: Callable[[], AbstractContextManager[Any]],
        *,
        is_first: bool,
        takes_tuple: bool,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer.module for layer in layers)
        self._precision = precision
        self._copies = changes_input(layers[0].module)
        self._is_first = is_first
        self._takes_tuple = takes_tuple

    def forward(self, *inputs: Tensor) -> Any:  # noqa: ANN401 - what the layer returns
        """Return the output of the last layer."""
        with self._precision():
            if self._copies:
                inputs = copy_inputs(inputs)
            if self._is_first:
                value = self.layers[0](*inputs)
            else:
                value = self.layers[0](inputs if self._takes_tuple else inputs[0])
            for layer in [*self.layers][1:]:
                value = layer(value)
            return value


class Elsewhere(nn.Module):
    """Takes the place of a layer that other ranks hold."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def forward(self, *_: object, **__: object) -> None:
        """Raise ConfigError."""
        text = f"layer {self._name} is on another rank of the pipeline"
        raise ConfigError(f"{text}; use trainer.step and trainer.predict")


def drop_layers(
    model: nn.Module, layers: Sequence[Layer], keep: Collection[int]
) -> None:
    """Take the layers that this rank does not have out of the model.

    The names of all others, and so those in its state dict, stay the same. A parameter
    that a kept layer shares with a dropped one keeps the names that it has in both, as
    in a checkpoint of the whole model.
    """
    kept = {p for position in keep for p in layers[position].module.parameters()}
    for position, layer in enumerate(layers):
        if position not in keep:
            place = Elsewhere(layer.name)
            for name, parameter in layer.module.named_parameters(
                remove_duplicate=False
            ):
                if parameter in kept:
                    _register(place, name, parameter)
            parent, _, name = layer.name.rpartition(".")
            model.get_submodule(parent).register_module(name, place)


def _register(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    *parents, last = path.split(".")
    for name in parents:
        if name not in module._modules:
            module.register_module(name, nn.Module())
        module = module.get_submodule(name)
    module.register_parameter(last, parameter)
