"""Separates the tensors of a state dict from its plain values, and joins them again.

Large tensors then travel like those of the model, in pieces with digests; the rest is
encoded as one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ringleader.errors import ConfigError

_REFERENCE = "\x00tensor"
"""Key of the dict that stands for a tensor in a tree."""

_MIN_BYTES = 1024
"""Smaller tensors stay in the tree."""


def split(tree: object, name: str) -> tuple[object, dict[str, Tensor]]:
    """Return the tree with references in place of its tensors, and the tensors."""
    tensors: dict[str, Tensor] = {}

    def walk(value: object, path: str) -> object:
        if type(value) is Tensor and value.nbytes >= _MIN_BYTES:
            if path in tensors:
                raise ConfigError(f"two values of the state are called {path}")
            tensors[path] = value
            return {_REFERENCE: path}
        if isinstance(value, dict):
            return {key: walk(each, f"{path}/{key}") for key, each in value.items()}
        if type(value) is list:
            return [walk(each, f"{path}/{i}") for i, each in enumerate(value)]
        if type(value) is tuple:
            return tuple(walk(each, f"{path}/{i}") for i, each in enumerate(value))
        return value

    return walk(tree, name), tensors


def join(tree: Any, tensors: Mapping[str, Tensor]) -> Any:  # noqa: ANN401  # any value
    """Return the tree with its tensors; ValueError if one was not sent."""
    if isinstance(tree, dict):
        if set(tree) == {_REFERENCE}:
            name = tree[_REFERENCE]
            if not isinstance(name, str) or name not in tensors:
                raise ValueError(f"no tensor {str(name)[:80]!r} was sent")
            return tensors[name]
        return {key: join(each, tensors) for key, each in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [join(each, tensors) for each in tree]
        return parts if type(tree) is list else type(tree)(parts)
    return tree


def update_in_place(target: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Give ``target`` the content; tensors that fit keep their memory."""
    for key in [key for key in target if key not in content]:
        del target[key]
    for key, value in content.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            update_in_place(old, value)
        elif _fits(old, value):
            old.detach().copy_(value)  # type: ignore[union-attr]
        else:
            target[key] = value


def _fits(old: object, new: object) -> bool:
    return (
        isinstance(old, Tensor)
        and isinstance(new, Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
    )
