"""Collectives on CPU tensors in groups where other ranks may stage theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ringleader.backend.staging import Body, chunk_runs
from ringleader.groups.group import Group, handle_of
from ringleader.groups.work import Work


def run_on_host(
    group: Group,
    ins: Sequence[Tensor],
    outs: Sequence[Tensor],
    body: Callable[..., Work],
    width: int,
    *,
    are_on_host: Callable[[], bool] | None = None,
    **how: Any,
) -> Work:
    """Run ``body`` on CPU tensors, in the same chunks as ranks that stage theirs.

    ``are_on_host`` is called first, as part of the operation: whether the tensors of
    all ranks are on the CPU. Then nobody needs chunks.
    """
    chunks = chunk_runs([*ins, *outs], width)
    if len(chunks) == 1 and are_on_host is None:
        return body(ins, outs, **how)
    # The caller may give its tensors other memory before the operation has ended.
    held = {id(t): t.detach() for t in (*ins, *outs)}
    sources, targets = [held[id(t)] for t in ins], [held[id(t)] for t in outs]

    def job() -> None:
        if are_on_host is not None and are_on_host():
            body(sources, targets)
        else:
            _run_chunks(sources, targets, body, chunks)

    return handle_of(group).together(job, **how)


def _run_chunks(
    ins: list[Tensor], outs: list[Tensor], body: Body, chunks: list[slice]
) -> None:
    flat = {id(t): t.contiguous().view(-1) for t in (*ins, *outs)}
    for run in chunks:
        part = {key: tensor[run] for key, tensor in flat.items()}
        body([part[id(t)] for t in ins], [part[id(t)] for t in outs])
    for tensor in outs:
        result = flat[id(tensor)]
        if result.data_ptr() != tensor.data_ptr():
            tensor.copy_(result.view(tensor.shape))
