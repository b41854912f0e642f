"""Which modules FSDP gathers as one: the repeated blocks of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that are never called themselves."""


def find_blocks(
    model: nn.Module, classes: Sequence[type[nn.Module]] | None = None
) -> list[nn.Module]:
    """Return the blocks, in the order in which the model lists them.

    By default these are the elements of the outermost lists of modules; with
    ``classes``, the outermost modules of these classes. A block that shares a parameter
    with another part of the model, or is used twice, is left to the rest of the model,
    where a shared parameter stays one parameter.
    """
    if classes is None:
        found = list(_elements(model))
    else:
        found = list(_of_classes(model, tuple(classes)))
    uses = Counter(_uses(model))
    return [
        block
        for block in found
        if not _shares(block, uses) and next(block.parameters(), None) is not None
    ]


def _elements(module: nn.Module) -> Iterator[nn.Module]:
    is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    for child in module.children():
        if is_list and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _elements(child)


def _of_classes(
    module: nn.Module, classes: tuple[type[nn.Module], ...]
) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, classes):
            yield child
        else:
            yield from _of_classes(child, classes)


def _uses(module: nn.Module) -> Iterable[nn.Parameter]:
    """Yield the parameters, once for each name by which the module reaches them."""
    return (each for _, each in module.named_parameters(remove_duplicate=False))


def _shares(block: nn.Module, uses: Counter[nn.Parameter]) -> bool:
    """Return whether something outside uses a parameter of the block."""
    inside = Counter(_uses(block))
    return any(uses[parameter] > count for parameter, count in inside.items())
