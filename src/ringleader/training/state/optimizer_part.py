"""The state of an optimizer: tensors of each parameter, plain values, hyperparameters.

An optimizer creates its state in its first step. For a member that adopts a state, the
tensors of the manifest are created here, so no step has to be faked. An optimizer with
a ``state_dict`` of its own is not taken apart: members exchange its ``state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.checkpoint import dtypes
from ringleader.training.state.manifest import Entry
from ringleader.training.state.model_part import entry_of, parameter_names

PREFIX = "optimizer/"

IMPLEMENTATION_FLAGS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that choose the code of a step, not its algorithm: they are not copied."""

_PARAMETERS = "params"


def is_plain(optimizer: Optimizer) -> bool:
    """Return whether its state is kept by torch's base class alone."""
    return (
        type(optimizer).state_dict is Optimizer.state_dict
        and type(optimizer).load_state_dict is Optimizer.load_state_dict
    )


def flags(optimizer: Optimizer, *, implementation: bool) -> tuple[str, ...]:
    """Return the switches of all groups, of the algorithm or of its implementation."""
    return tuple(
        f"{key}={group[key]} (group {i})"
        for i, group in enumerate(optimizer.param_groups)
        for key in sorted(group, key=str)
        if isinstance(group[key], bool | None)
        and (key in IMPLEMENTATION_FLAGS) == implementation
    )


class OptimizerPart:
    """Reads and replaces the state of a plain optimizer."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors of the state by name, in a fixed order."""
        return {
            f"{PREFIX}{name}/{key}": tensor
            for name, parameter in self._parameters().items()
            for key, tensor in self.tensors_of(parameter).items()
        }

    def values(self) -> dict[str, Any]:
        """Return all that is not a tensor of a parameter."""
        state: dict[Any, Any] = self._optimizer.state
        return {
            "state": {
                name: self.values_of(p)
                for name, p in self._parameters().items()
                if p in state
            },
            "other": {k: v for k, v in state.items() if not isinstance(k, Tensor)},
            "groups": self.hyperparameters(),
        }

    def tensors_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the live tensors that the optimizer keeps for a parameter, by key."""
        keys = sorted(self._keys(parameter, of_tensors=True))
        return {key: self._optimizer.state[parameter][key] for key in keys}

    def values_of(self, parameter: Tensor) -> dict[str, Any]:
        """Return the plain values that the optimizer keeps for a parameter."""
        keys = self._keys(parameter, of_tensors=False)
        return {key: self._optimizer.state[parameter][key] for key in keys}

    def hyperparameters(self) -> list[dict[str, Any]]:
        """Return the hyperparameters of all groups."""
        return [_hyperparameters(group) for group in self._optimizer.param_groups]

    def set_hyperparameters(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Give the groups their hyperparameters; ValueError if they do not fit."""
        for group, given in zip(self._optimizer.param_groups, groups, strict=True):
            _set_hyperparameters(group, given)

    def set_state(
        self,
        parameter: Tensor,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
    ) -> None:
        """Replace the state of one parameter; tensors move to where torch has them."""
        self._optimizer.state[parameter] = {
            **values,
            **{k: t.to(self._device_of(k, parameter)) for k, t in tensors.items()},
        }

    def targets(self, entries: Iterable[Entry]) -> dict[str, Tensor]:
        """Return a tensor for each entry: a live one if it fits, else a new one.

        Raises ValueError if an entry belongs to no parameter.
        """
        live, parameters = self.tensors(), self._parameters()
        found: dict[str, Tensor] = {}
        for entry in entries:
            name, _, key = entry.name.removeprefix(PREFIX).rpartition("/")
            if name not in parameters:
                raise ValueError(f"{entry.name[:80]} belongs to no parameter")
            old = live.get(entry.name)
            if old is None or entry_of(entry.name, old) != entry:
                device = self._device_of(key, parameters[name])
                dtype = dtypes.dtype_of(entry.dtype)
                old = torch.empty(entry.shape, dtype=dtype, device=device)
            found[entry.name] = old
        return found

    def adopt(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Replace the state by these tensors and values."""
        parameters = self._parameters()
        state: dict[Tensor, dict[str, Any]] = {
            parameters[name]: dict(kept) for name, kept in values["state"].items()
        }
        for full, tensor in tensors.items():
            name, _, key = full.removeprefix(PREFIX).rpartition("/")
            state.setdefault(parameters[name], {})[key] = tensor
        self._optimizer.state.clear()
        self._optimizer.state.update(state)
        self._optimizer.state.update(values["other"])
        self.set_hyperparameters(values["groups"])

    def _parameters(self) -> dict[str, Tensor]:
        """Return the parameters of the groups by name, in their order."""
        names = parameter_names(self._model, self._optimizer)
        groups = self._optimizer.param_groups
        return {names[p]: p for group in groups for p in group[_PARAMETERS]}

    def _keys(self, parameter: Tensor, *, of_tensors: bool) -> list[str]:
        state = self._optimizer.state
        if parameter not in state:
            return []
        return [k for k, v in state[parameter].items() if _travels(k, v) == of_tensors]

    def _device_of(self, key: str, parameter: Tensor) -> torch.device:
        """Return where torch keeps a tensor of the state: counts in host memory."""
        groups = self._optimizer.param_groups
        group = next(g for g in groups if any(p is parameter for p in g[_PARAMETERS]))
        is_counted = group.get("capturable") or group.get("fused")
        return (
            torch.device("cpu")
            if key == "step" and not is_counted
            else (parameter.device)
        )


def _travels(key: object, value: object) -> bool:
    return isinstance(key, str) and "/" not in key and type(value) is Tensor


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    skipped = {_PARAMETERS, *IMPLEMENTATION_FLAGS}
    return {key: value for key, value in group.items() if key not in skipped}


def _set_hyperparameters(group: dict[str, Any], adopted: Mapping[str, Any]) -> None:
    for key in set(_hyperparameters(group)) - set(adopted):
        del group[key]
    for key, value in adopted.items():
        if isinstance(group.get(key), Tensor):
            group[key].detach().copy_(torch.as_tensor(value))
        elif key not in (_PARAMETERS, *IMPLEMENTATION_FLAGS):
            group[key] = value
