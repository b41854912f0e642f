"""Gives all ranks of a Group the same model before the first step.

DDP does this for torch's process groups. With a plain ``Group``, machines that have
different versions of a script would otherwise add up gradients of other parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ringleader.errors import CallMismatch, ConfigError
from ringleader.groups.group import Group

MAX_LAYOUT_BYTES = 16 << 20
"""Enough for 200,000 parameters and buffers with long names."""


def sync_module_states(model: nn.Module, group: Group) -> None:
    """Check that all ranks have the same model layout, then broadcast rank 0's values.

    A layout is the names, shapes and dtypes of parameters and buffers. A rank whose
    layout differs from rank 0's raises CallMismatch with the first difference; the
    other ranks raise CallMismatch with that rank.
    """
    state = dict(model.state_dict(keep_vars=True))
    tensors = {name: value for name, value in state.items() if _is_shared(value)}
    mine = layout(tensors)
    theirs = _layout_of_rank_0(mine, group)
    wrong = torch.zeros(group.size, dtype=torch.int64, device="cpu")
    wrong[group.rank] = int(mine != theirs)
    group.all_reduce(wrong)
    if mine != theirs:
        raise CallMismatch(0, f"has another model: {difference(mine, theirs)}")
    others = [rank for rank in range(group.size) if wrong[rank]]
    if others:
        raise CallMismatch(
            others[0], "has another model than this rank; its error says the difference"
        )
    with torch.no_grad():
        for tensor in tensors.values():
            group.broadcast(tensor.detach(), 0)


def _is_shared(value: object) -> bool:
    return isinstance(value, Tensor) and value.numel() > 0


def layout(tensors: dict[str, Tensor]) -> list[str]:
    """Return one line per parameter or buffer, in order."""
    return [
        f"{name}: {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in tensors.items()
    ]


def _layout_of_rank_0(mine: list[str], group: Group) -> list[str]:
    """Broadcast rank 0's layout."""
    text = "\n".join(mine).encode()
    if len(text) > MAX_LAYOUT_BYTES:
        raise ConfigError(
            f"the model has a layout of {len(text)} bytes; the limit is "
            f"{MAX_LAYOUT_BYTES}"
        )
    size = torch.tensor([len(text)], device="cpu")
    group.broadcast(size, 0)
    num_bytes = int(size)
    if not 0 <= num_bytes <= MAX_LAYOUT_BYTES:
        raise CallMismatch(0, f"announced a model layout of {num_bytes} bytes")
    body = torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")
    if group.rank == 0 and text:
        body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    group.broadcast(body, 0)
    return (
        bytes(body.tolist()).decode(errors="replace").split("\n") if num_bytes else []
    )


def difference(
    mine: list[str], theirs: list[str], where: tuple[str, str] = ("here", "there")
) -> str:
    """Describe the first line that differs; ``where`` says whose lines they are."""
    for ours, other in zip(mine, theirs, strict=False):
        if ours != other:
            return f"'{ours}' {where[0]} is '{other}' {where[1]}"
    is_longer = len(mine) > len(theirs)
    longer = mine if is_longer else theirs
    extra = longer[min(len(mine), len(theirs))]
    return f"'{extra}' exists only {where[0] if is_longer else where[1]}"
