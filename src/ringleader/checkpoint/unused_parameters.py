"""Parameters for which a checkpoint has no optimizer state: they never got a gradient.

torch creates the state of a new optimizer for all its parameters. What a checkpoint
does not have is left out of what is loaded, and removed afterwards, so that the
optimizer is as it was when the checkpoint was saved.
"""

from __future__ import annotations

from torch import nn

from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.training_state import Optimizers, State

_OPTIMIZER, _STATE = "optimizer", "state"


def unsaved_names(state: State, manifest: Manifest) -> list[str]:
    """Return the parameters with a state here, of which the checkpoint has none."""
    paths = manifest.paths.values()
    saved = {path[2] for path in paths if path[:2] == (_OPTIMIZER, _STATE)}
    return [
        name for name in state.get(_OPTIMIZER, {}).get(_STATE, {}) if name not in saved
    ]


def without(state: State, names: list[str]) -> State:
    """Return the state without the optimizer state of these parameters.

    Everything inside is shared with ``state``.
    """
    if not names:
        return state
    optimizer = state[_OPTIMIZER]
    kept = {name: each for name, each in optimizer[_STATE].items() if name not in names}
    return {**state, _OPTIMIZER: {**optimizer, _STATE: kept}}


def forget_states(
    model: nn.Module | None, optimizer: Optimizers, names: list[str]
) -> None:
    """Remove what the optimizers keep for these parameters."""
    if model is None or optimizer is None or not names:
        return
    parameters = dict(model.named_parameters())
    found = [
        p for name, p in parameters.items() if name.removeprefix("module.") in names
    ]
    for each in optimizer if isinstance(optimizer, list) else [optimizer]:
        for parameter in found:
            each.state.pop(parameter, None)
