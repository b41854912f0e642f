"""ReplicatedState: everything that has to be equal on all members of a run.

The tensors of model and optimizer, and the plain values of optimizer, scheduler,
loss scaler, data order and the user's extra state, in one fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ringleader.checkpoint import dtypes, values
from ringleader.checkpoint.training_state import Stateful
from ringleader.errors import ConfigError, LayoutMismatch
from ringleader.training.state import digests, model_part, value_tree
from ringleader.training.state.digests import Digests
from ringleader.training.state.fingerprint import fingerprint
from ringleader.training.state.manifest import Entry, Layout, Manifest
from ringleader.training.state.optimizer_part import (
    PREFIX,
    OptimizerPart,
    flags,
    is_plain,
)

_OTHER = "other/"
_EXTRA = "extra"
_OPTIMIZER = "optimizer"

_MAX_NEW_BYTES = 1 << 30
_MAX_NEW_RATIO = 64
"""New memory that a manifest may ask for: so many times the model, plus a gigabyte."""


class ReplicatedState:
    """The state of one member, of which all members hold equal copies.

    ``others`` are objects with ``state_dict`` and ``load_state_dict``: scheduler, loss
    scaler, data order. ``extra`` is the user's dict; it is updated in place.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        others: Mapping[str, Stateful] | None = None,
        extra: dict[str, Any] | None = None,
        *,
        has_local: bool = True,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.others: dict[str, Stateful] = dict(others or {})
        self.extra = extra
        self._moments = OptimizerPart(model, optimizer) if is_plain(optimizer) else None
        self._has_local = has_local
        self.arrived: dict[str, Tensor] = {}
        """Bytes of tensors that came in a copy which did not end; for the next one."""
        self._new: dict[Entry, Tensor] = {}
        """Tensors for such a copy that the state here does not have yet."""
        self.is_begun = False
        """True if a copy of another state was begun and did not end."""

    def forget_begun(self) -> None:
        """Free the memory of a copy that was begun: it has ended, or is not needed."""
        self.is_begun = False
        self.arrived.clear()
        self._new.clear()

    def without_local(self) -> ReplicatedState:
        """Return the part that the steps of a run keep equal on all members.

        It lacks what user code may change on one machine, and what newcomers get all
        the same: the extra states, and buffers that are not of BatchNorm.
        """
        return ReplicatedState(self.model, self.optimizer, self.others, has_local=False)

    def layout(self) -> Layout:
        """Return what must be equal on members before they exchange states."""
        names = model_part.parameter_names(self.model, self.optimizer)
        kind = type(self.optimizer)
        tensors = self._model_tensors()
        return Layout(
            f"{kind.__module__}.{kind.__qualname__}",
            flags(self.optimizer, implementation=False),
            tuple(
                tuple(names[parameter] for parameter in group["params"])
                for group in self.optimizer.param_groups
            ),
            tuple(model_part.entry_of(*item) for item in tensors.items()),
        )

    def fingerprint(self) -> bytes:
        """Return a digest of what decides whether machines compute equal bits."""
        tensors = self._model_tensors()
        return fingerprint(list(tensors.values()), self.optimizer)

    def snapshot(self) -> tuple[Manifest, dict[str, Tensor]]:
        """Return the manifest and the live tensors, in the order of the manifest.

        Raises ConfigError if a value cannot be sent without pickle.
        """
        trees, tensors = self._trees()
        found = self._model_tensors()
        if self._moments is not None:
            found |= self._moments.tensors()
        found |= tensors
        for name, tensor in found.items():
            model_part.check_tensor(name, tensor)
        entries = tuple(model_part.entry_of(*item) for item in found.items())
        return Manifest(entries, values.encode(trees, is_sorted=True)), found

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as they are now."""
        moments = self._moments.tensors() if self._moments is not None else {}
        tensors = (*self._model_tensors().values(), *moments.values())
        return sum(tensor.nbytes for tensor in tensors)

    def digest(self) -> Digests:
        """Return the digests of all tensors and values as they are now."""
        listed, tensors = self.snapshot()
        return digests.digest_state(listed.tensors, tensors, listed.values)

    def targets(self, offered: Manifest) -> dict[str, Tensor]:
        """Return a tensor for each entry of another member's manifest.

        Tensors of the model and those of the optimizer that fit are the live ones.
        Raises LayoutMismatch if the manifest does not belong to this model.
        """
        live = self._model_tensors()
        moments: list[Entry] = []
        rest: list[Entry] = []
        missing = dict(live)
        for entry in offered.tensors:
            if entry.name in live:
                mine = model_part.entry_of(entry.name, missing.pop(entry.name))
                if mine != entry:
                    raise LayoutMismatch(f"{mine} here is {entry} there")
            elif self._moments is not None and entry.name.startswith(PREFIX):
                moments.append(entry)
            else:
                rest.append(entry)
        if missing:
            raise LayoutMismatch(f"{next(iter(missing))} was not sent")
        _check_new_bytes(live, [*moments, *rest])
        found = dict(live)
        try:
            found |= self._moments.targets(moments) if self._moments else {}
        except ValueError as exc:
            raise LayoutMismatch(str(exc)) from None
        for entry in rest:
            dtype = dtypes.dtype_of(entry.dtype)
            found[entry.name] = torch.empty(entry.shape, dtype=dtype)
        owned = live | (self._moments.tensors() if self._moments else {})
        new: dict[Entry, Tensor] = {}
        for entry in (*moments, *rest):
            if found[entry.name] is not owned.get(entry.name):
                new[entry] = self._new.get(entry, found[entry.name])
                found[entry.name] = new[entry]
        self._new = new
        return {entry.name: found[entry.name] for entry in offered.tensors}

    def other(self, name: str, encoded: bytes) -> Any:  # noqa: ANN401 - a state_dict
        """Return what one of ``others`` is to load, of values that were received.

        Raises LayoutMismatch if that is not among them.
        """
        try:
            return values.decode(encoded)[f"{_OTHER}{name}"]
        except (LookupError, TypeError, ValueError) as exc:
            raise LayoutMismatch(f"the state has no {name}: {exc}"[:500]) from exc

    def adopt(self, offered: Manifest, tensors: Mapping[str, Tensor]) -> None:
        """Take over another member's state, received into its ``targets``.

        Raises LayoutMismatch if the values do not belong to the objects here.
        """
        try:
            trees = values.decode(offered.values)
            content = value_tree.join(trees, tensors)
            self._load(content, tensors)
            self.forget_begun()
        except (LookupError, TypeError, ValueError, RuntimeError) as exc:
            if isinstance(exc, ConfigError):
                raise
            text = f"the values of the state do not fit: {type(exc).__name__}: {exc}"
            raise LayoutMismatch(text[:500]) from exc

    def _model_tensors(self) -> dict[str, Tensor]:
        return model_part.model_tensors(
            self.model, self.optimizer, has_local=self._has_local
        )

    def _trees(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return all plain values, and the tensors found among them."""
        extra_states = model_part.extra_states(self.model) if self._has_local else {}
        trees: dict[str, Any] = {"model": extra_states}
        tensors: dict[str, Tensor] = {}
        parts: dict[str, object] = {
            f"{_OTHER}{name}": other.state_dict() for name, other in self.others.items()
        }
        parts[_EXTRA] = self.extra or {}
        if self._moments is None:
            parts[_OPTIMIZER] = self.optimizer.state_dict()
        else:
            trees[_OPTIMIZER] = self._moments.values()
        for name, part in parts.items():
            trees[name], found = value_tree.split(part, name)
            tensors |= found
        return trees, tensors

    def _load(self, content: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
        model_part.load_extra_states(self.model, content["model"])
        if self._moments is None:
            self.optimizer.load_state_dict(content[_OPTIMIZER])
        else:
            mine = {n: t for n, t in tensors.items() if n.startswith(PREFIX)}
            self._moments.adopt(mine, content[_OPTIMIZER])
        for name, other in self.others.items():
            other.load_state_dict(content[f"{_OTHER}{name}"])
        if self.extra is not None:
            value_tree.update_in_place(self.extra, content[_EXTRA])


def _check_new_bytes(live: Mapping[str, Tensor], new: list[Entry]) -> None:
    """Refuse a manifest that asks for more memory than any optimizer needs."""
    model_bytes = sum(tensor.nbytes for tensor in live.values())
    asked = sum(entry.num_bytes for entry in new)
    if asked > _MAX_NEW_RATIO * model_bytes + _MAX_NEW_BYTES:
        text = f"the state beside the model has {asked} bytes; the model {model_bytes}"
        raise LayoutMismatch(text)
