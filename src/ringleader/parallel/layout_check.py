"""Compares what all ranks are about to train, before anything is sent.

Equal layouts cost one all_gather of 32 bytes per rank.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ringleader.errors import CallMismatch, ConfigError
from ringleader.parallel.exchange_device import exchange_device
from ringleader.parallel.sync_module_states import MAX_LAYOUT_BYTES, difference

MAX_SENTENCE_BYTES = 1000


def model_layout(model: nn.Module) -> list[str]:
    """Return one line per parameter and buffer: name, shape, dtype, and how it is used.

    A tensor with several names is listed under each of them.
    """
    first: dict[Tensor, str] = {}
    lines = []
    for name, tensor in [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]:
        dtype = str(tensor.dtype).removeprefix("torch.")
        line = f"{name}: {list(tensor.shape)} {dtype}"
        if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
            line += " frozen"
        if tensor in first:
            line += f" shared with {first[tensor]}"
        first.setdefault(tensor, name)
        lines.append(line)
    return lines


def check_layout(lines: list[str], device: torch.device) -> None:
    """Raise CallMismatch on all ranks unless all have the same lines.

    The error names the first rank that differs from rank 0, and the first difference.
    ``device`` is where the tensors of the model are.
    """
    text = "\n".join(lines).encode()
    if len(text) > MAX_LAYOUT_BYTES:
        raise ConfigError(
            f"the model has a layout of {len(text)} bytes; the limit is "
            f"{MAX_LAYOUT_BYTES}"
        )
    where = exchange_device(device.type, dist.get_backend_config())
    mine = _tensor(hashlib.sha256(text).digest(), where)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    odd = [rank for rank, row in enumerate(rows) if not torch.equal(row, rows[0])]
    if not odd:
        return
    theirs = _broadcast(text, 0, MAX_LAYOUT_BYTES, where).split("\n")
    sentence = ""
    if dist.get_rank() == odd[0]:
        sentence = difference(lines, theirs, (f"on rank {odd[0]}", "on rank 0"))
    limit = MAX_SENTENCE_BYTES
    sentence = _broadcast(sentence.encode()[:limit], odd[0], limit, where)
    raise CallMismatch(odd[0], f"has another model or call than rank 0: {sentence}")


def broadcast_state(model: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    backends = dist.get_backend_config()
    seen: dict[Tensor, None] = dict.fromkeys([*model.parameters(), *model.buffers()])
    pending = []
    for tensor in (each.detach() for each in seen if each.numel()):
        sent = tensor.to(exchange_device(tensor.device.type, backends)).contiguous()
        pending.append((tensor, sent, dist.broadcast(sent, 0, async_op=True)))
    for tensor, sent, work in pending:
        if work is not None:
            work.wait()
        if sent.data_ptr() != tensor.data_ptr():
            tensor.copy_(sent)


def _broadcast(data: bytes, source: int, limit: int, device: str) -> str:
    """Return the bytes of ``source`` as text; at most ``limit`` of them are read."""
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, source)
    num_bytes = int(size)
    if not 0 <= num_bytes <= limit:
        raise CallMismatch(source, f"announced a model layout of {num_bytes} bytes")
    body = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    if dist.get_rank() == source:
        body = _tensor(data, device)
    if num_bytes:
        dist.broadcast(body, source)
    return body.cpu().numpy().tobytes().decode(errors="replace")


def _tensor(data: bytes, device: str) -> Tensor:
    if not data:
        return torch.zeros(0, dtype=torch.uint8, device=device)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
