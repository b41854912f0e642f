"""Saves a checkpoint from all ranks, without a shared disk.

1. DCP plans which rank saves what; each rank writes its shard.
2. Each machine sends its shards to the next one, which verifies its copies.
3. Each machine writes the manifest. Until then, nobody sees the new files.
4. Old checkpoints are removed, when all machines have the new one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn

from ringleader.checkpoint import manifest as manifests
from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.catalog import checkpoint_name
from ringleader.checkpoint.copies import send_copies
from ringleader.checkpoint.dcp_writer import Writer
from ringleader.checkpoint.group_adapters import AnyGroup
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.parameter_groups import merge_ranks
from ringleader.checkpoint.retention import remove_old
from ringleader.checkpoint.shared_folders import find_disks
from ringleader.checkpoint.storage import Storage, open_storage, write
from ringleader.checkpoint.training_state import Optimizers, State, collect
from ringleader.checkpoint.write_shards import write_shards
from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

KEEP = 3
"""Checkpoints that are kept unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was saved; ``path`` is its folder on this machine."""

    step: int
    path: str
    num_bytes: int


def save(
    folder: str | os.PathLike[str],
    step: int,
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    *,
    keep: int = KEEP,
    group: AnyGroup | None = None,
    **others: object,
) -> Saved:
    """Save the training state after ``step``; all ranks of the group call it.

    ``others`` are objects with ``state_dict`` (a scheduler, a sampler) and values (an
    epoch, a best loss). ``folder`` may be on a disk of each machine, on one that they
    share, or a URL that fsspec knows. The newest ``keep`` checkpoints stay.
    ``group`` is torch's or a ``ringleader.Group``; by default all ranks.

    Raises ConfigError on all ranks, with the rank and the reason, if one of them cannot
    save; earlier checkpoints stay as they are.
    """
    exchange = exchange_of(group)
    return write_state(
        folder,
        step,
        lambda: collect(model, optimizer, others, exchange.rank),
        keep,
        exchange,
    )


def exchange_of(group: AnyGroup | None) -> ByteExchange:
    """Return the exchange of a group, by default of all ranks."""
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    return ByteExchange(group)


def write_state(
    folder: str | os.PathLike[str],
    step: int,
    collected: Callable[[], State],
    keep: int,
    exchange: ByteExchange,
    checkpoint_id: str = "",
) -> Saved:
    """Save the state that ``collected`` returns; all ranks call it.

    ``checkpoint_id`` (16 hexadecimal digits) is random if it is not given.
    """
    states: list[State] = []

    def begin() -> bytes:
        if not 0 <= step < 1 << 53 or keep < 1:
            text = f"step {step}, keep {keep}: step >= 0 and keep >= 1 needed"
            raise ConfigError(text)
        open_storage(folder)
        states.append(collected())
        return str(step).encode()

    steps = {int(each) for each in together(exchange, "save a checkpoint", begin)}
    if len(steps) > 1:
        raise ConfigError(f"the ranks save different steps: {sorted(steps)}")
    merge_ranks(states[0], exchange)
    storage = open_storage(folder)
    disks = find_disks(storage, exchange)
    leads = disks[exchange.rank] == exchange.rank
    writer = Writer(folder, step, publish=False)
    try:
        manifest = write_shards(writer, states[0], exchange, checkpoint_id)
        name = checkpoint_name(step, manifest.id)
        send_copies(storage, name, manifest, exchange, disks)
    except ConfigError:
        if leads and writer.folder:  # it may have filled the disk
            storage.remove(writer.folder)
        raise
    together(
        exchange,
        "write the manifest",
        lambda: _publish(storage, name, manifest) if leads else None,
    )
    if leads:
        try:
            remove_old(storage, keep, name)
        except Exception as exc:  # noqa: BLE001  # the new checkpoint is complete
            _log.warning("old checkpoints were not removed: %s", exc)
    return Saved(step, f"{storage}/{name}", manifest.num_bytes)


def _publish(storage: Storage, name: str, manifest: Manifest) -> None:
    write(storage, f"{name}/{manifests.NAME}", [manifests.encode(manifest)])
