"""Training state as DCP's nested dict: model, optimizer, other objects, random numbers.

Model and optimizer become tensors under the names of the plain model, whichever way
they are sharded (torch's ``get_state_dict``). Schedulers, samplers and values are small
and become one encoded value each. What differs between the ranks, such as the state of
random generators, is stored for each rank; residuals of compression, which are as large
as the model, as tensors.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from ringleader.checkpoint import dtypes, values
from ringleader.checkpoint.manifest import Manifest
from ringleader.compression.attached_hook import compressor_of
from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

Optimizers = Optimizer | list[Optimizer] | None
State = dict[str, Any]

_RANK_TENSORS = "rank_tensors"

LIVE = ("model", "optimizer")
"""Keys of the state whose tensors are those of the training itself, not copies."""


@runtime_checkable
class Stateful(Protocol):
    """An object whose state is saved: a scheduler, a sampler, a data loader."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any) -> object:  # noqa: ANN401  # as torch's
        """Take over a state."""
        ...


def collect(
    model: nn.Module | None,
    optimizer: Optimizers,
    others: Mapping[str, object],
    rank: int,
) -> State:
    """Return all that is saved; the tensors are the live ones, not copies."""
    others = with_residuals(model, others)
    state = tensors_of(model, optimizer)
    of_rank: State = {"random": random_states()}
    tensors: State = {}
    shared: State = {}
    for name, other in others.items():
        content = other.state_dict() if isinstance(other, Stateful) else other
        if is_per_rank(other) and _holds_tensors(content):
            tensors[name] = content
        else:
            (of_rank if is_per_rank(other) else shared)[name] = content
    state["values"] = {name: _encoded(name, value) for name, value in shared.items()}
    state["ranks"] = {
        str(rank): {name: _encoded(name, value) for name, value in of_rank.items()}
    }
    if tensors:
        state[_RANK_TENSORS] = {str(rank): tensors}
    return state


def with_residuals(
    model: nn.Module | None, others: Mapping[str, object]
) -> dict[str, object]:
    """Add the compressor of a model's gradients, unless the caller names it."""
    compressor = compressor_of(model)
    if compressor is None or any(other is compressor for other in others.values()):
        return dict(others)
    # With the scheme: a run that goes on with another one begins without residuals.
    return {**others, f"compression {compressor.scheme.name}": compressor}


def _holds_tensors(content: object) -> bool:
    """Return whether DCP can save the content as tensors: named, and nothing else."""
    return (
        isinstance(content, dict)
        and bool(content)
        and all(isinstance(k, str) and type(v) is Tensor for k, v in content.items())
    )


def tensors_of(model: nn.Module | None, optimizer: Optimizers) -> State:
    """Return the state of model and optimizer, sharded as they are."""
    if model is None:
        if optimizer is not None:
            raise ConfigError("an optimizer is saved together with its model")
        return {}
    optimizers = _with_parameters(optimizer)
    if not optimizers:
        return {"model": get_model_state_dict(model)}
    unused = [each for each in optimizers if not each.state]
    with _without_gradients(unused):
        weights, moments = get_state_dict(model, optimizers)
    for each in unused:
        _reset_steps(each)
    return {"model": weights, "optimizer": moments}


def _with_parameters(optimizer: Optimizers) -> list[Optimizer]:
    """Return the optimizers that train something.

    That of a pipeline's stage whose layers are frozen has only an empty parameter,
    which is not the model's.
    """
    if optimizer is None:
        return []
    return [
        each
        for each in (optimizer if isinstance(optimizer, list) else [optimizer])
        if any(p.numel() for group in each.param_groups for p in group["params"])
    ]


@contextmanager
def _without_gradients(optimizers: list[Optimizer]) -> Iterator[None]:
    """Take the gradients away for a moment.

    torch creates the state of a new optimizer only if there are none. Without a state
    to load into, the moments of a checkpoint would be left out silently.
    """
    groups = [group for each in optimizers for group in each.param_groups]
    gradients = [(p, p.grad) for group in groups for p in group["params"]]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _reset_steps(optimizer: Optimizer) -> None:
    """Undo the step of size 0 by which torch creates the state of a new optimizer.

    Adam and others would correct their bias for a step that was none.
    """
    for state in optimizer.state.values():
        if isinstance(step := state.get("step"), Tensor):
            step.zero_()


def restore_tensors(
    model: nn.Module | None, optimizer: Optimizers, state: State
) -> None:
    """Put loaded tensors into model and optimizer."""
    optimizers = _with_parameters(optimizer)
    if model is not None and not optimizers:
        set_model_state_dict(model, state["model"])
    elif model is not None:
        set_state_dict(
            model,
            optimizers,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def template(manifest: Manifest, others: Mapping[str, object], rank: int) -> State:
    """Return the nested dict into which the values of a checkpoint are loaded.

    Raises ConfigError if the checkpoint lacks the state of an object.
    """
    shared = names_under(manifest, "values")
    of_rank = names_under(manifest, "ranks", str(rank))
    for name, other in others.items():
        if name not in shared and not is_per_rank(other):
            known = ", ".join(sorted(shared)) or "nothing else"
            raise ConfigError(f"no {name!r} in this checkpoint; it holds {known}")
    state: State = {
        "values": dict.fromkeys(shared, b""),
        "ranks": {str(rank): dict.fromkeys(of_rank, b"")},
    }
    tensors = _empty_tensors(manifest, others, rank)
    return {**state, _RANK_TENSORS: {str(rank): tensors}} if tensors else state


def _empty_tensors(
    manifest: Manifest, others: Mapping[str, object], rank: int
) -> dict[str, dict[str, Tensor]]:
    """Return tensors for the states of a rank's objects: object -> name -> tensor."""
    found: dict[str, dict[str, Tensor]] = {}
    for flat, saved in manifest.tensors.items():
        keys = [str(key) for key in manifest.paths.get(flat, ())]
        if keys[:2] == [_RANK_TENSORS, str(rank)] and len(keys) == 4:
            _, _, other, name = keys
            if other in others:
                dtype = dtypes.dtype_of(saved.dtype)
                empty = torch.empty(saved.shape, dtype=dtype)
                found.setdefault(other, {})[name] = empty
    return found


def names_under(manifest: Manifest, *path: str) -> list[str]:
    """Return the keys of the values under a path of keys."""
    depth = len(path)
    return [
        str(keys[depth])
        for name, keys in manifest.paths.items()
        if name in manifest.values and keys[:depth] == path and len(keys) == depth + 1
    ]


def restore_objects(
    state: State, others: Mapping[str, object], rank: int, same_size: bool
) -> dict[str, Any]:
    """Give the objects their states; return the values that are no object's."""
    rest = {name: values.decode(data) for name, data in state["values"].items()}
    of_rank = state["ranks"][str(rank)] if same_size else {}
    tensors = state.get(_RANK_TENSORS, {}).get(str(rank), {}) if same_size else {}
    for name, other in others.items():
        if is_per_rank(other):
            if name in tensors:
                _load(name, other, tensors[name])
            elif name in of_rank:
                _load(name, other, values.decode(of_rank[name]))
            else:
                text = "%s begins anew: not saved, or by another number of ranks"
                _log.warning(text, name)
        elif name in rest:
            _load(name, other, rest.pop(name))
    return rest


def is_per_rank(other: object) -> bool:
    """True if each rank has a state of its own, as error feedback has."""
    return bool(getattr(other, "state_is_per_rank", False))


def random_states() -> State:
    """Return the states of all random generators of this process."""
    states: State = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # the state of users' programs
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(state: State, rank: int) -> None:
    """Continue the random numbers of a rank where they were."""
    states = values.decode(state["ranks"][str(rank)]["random"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    cuda = states.get("cuda", [])
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)


def _encoded(name: str, value: object) -> bytes:
    try:
        return values.encode(value)
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc}") from None


def _load(name: str, other: object, state: object) -> None:
    if not isinstance(other, Stateful):
        text = f"{name!r} is a {type(other).__name__} without load_state_dict"
        raise ConfigError(f"{text}; values that were saved are in the result's .values")
    other.load_state_dict(state)
