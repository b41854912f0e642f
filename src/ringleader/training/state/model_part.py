"""The tensors of a model: parameters and persistent buffers, each once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ringleader.checkpoint import dtypes
from ringleader.errors import ConfigError
from ringleader.training.state.manifest import Entry

_MODEL = "model/"
_LOOSE = "parameter/"


def parameter_names(model: nn.Module, optimizer: Optimizer) -> dict[Tensor, str]:
    """Return the name of each parameter of the model and of the optimizer.

    Parameters that only the optimizer has are named by group and position.
    """
    names: dict[Tensor, str] = {p: n for n, p in model.named_parameters()}
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            names.setdefault(parameter, f"group {i}, parameter {j}")
    return names


def model_tensors(
    model: nn.Module, optimizer: Optimizer, *, has_local: bool = True
) -> dict[str, Tensor]:
    """Return the live tensors of model and optimizer parameters by name, in order.

    Tied parameters appear once, under the first name. Buffers that are not persistent
    are not part of the state, as in ``state_dict``. Without ``has_local`` buffers that
    ``forward`` may change on one machine are left out: all but those of BatchNorm.
    """
    found: dict[str, Tensor] = {}
    found |= {f"{_MODEL}{name}": tensor for name, tensor in model.named_parameters()}
    buffers = _buffers(model, has_local=has_local)
    found |= {f"{_MODEL}{name}": buffer for name, buffer in buffers}
    known = {id(tensor) for tensor in found.values()}
    for parameter, name in parameter_names(model, optimizer).items():
        if id(parameter) not in known:
            found[f"{_LOOSE}{name}"] = parameter
    for name, tensor in found.items():
        check_tensor(name, tensor)
    return found


def _buffers(model: nn.Module, *, has_local: bool) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if not has_local and not isinstance(module, _NormBase):
            continue
        hidden = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(recurse=False):
            if name not in hidden and id(buffer) not in seen:
                seen.add(id(buffer))
                yield (f"{prefix}.{name}" if prefix else name), buffer


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise ConfigError if the tensor has no plain bytes that can be copied."""
    if is_lazy(tensor):
        text = "has no shape yet; call the model once before the run starts"
    elif tensor.is_meta:
        text = "is on the meta device; give the model memory before the run starts"
    elif tensor.layout != torch.strided or tensor.is_quantized:
        text = f"is not a dense tensor but {tensor.layout}"
    else:
        return
    raise ConfigError(f"{name} {text}")


def entry_of(name: str, tensor: Tensor) -> Entry:
    """Return the entry of a tensor in a manifest."""
    return Entry(name, dtypes.name_of(tensor.dtype), tuple(tensor.shape))


def extra_states(model: nn.Module) -> dict[str, object]:
    """Return what modules keep beside tensors (``get_extra_state``)."""
    return {
        name: module.get_extra_state()
        for name, module in model.named_modules()
        if type(module).get_extra_state is not nn.Module.get_extra_state
    }


def load_extra_states(model: nn.Module, states: dict[str, object]) -> None:
    """Give modules their extra states; unknown names are ignored."""
    for name, module in model.named_modules():
        if name in states:
            module.set_extra_state(states[name])
