"""Loads the newest complete checkpoint, from whichever machines hold its parts."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from torch import nn
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from ringleader.checkpoint import catalog
from ringleader.checkpoint import manifest as manifests
from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.checkpoint.catalog import Candidate
from ringleader.checkpoint.dcp_reader import Reader
from ringleader.checkpoint.group_adapters import AnyGroup
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.place_reader import DamagedCheckpoint, PlaceReader
from ringleader.checkpoint.planners import LoadPlanner
from ringleader.checkpoint.save import exchange_of
from ringleader.checkpoint.storage import Storage, open_storage
from ringleader.checkpoint.training_state import (
    LIVE,
    Optimizers,
    State,
    restore_objects,
    restore_random_states,
    restore_tensors,
    template,
    tensors_of,
    with_residuals,
)
from ringleader.checkpoint.unused_parameters import (
    forget_states,
    unsaved_names,
    without,
)
from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

_UNCHANGED = "model and optimizer are unchanged"
_MIXED = "model and optimizer are partly overwritten: load again before training"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was loaded: its step, and the values saved with it."""

    step: int
    path: str
    values: dict[str, Any] = field(default_factory=dict)


def load(
    folder: str | os.PathLike[str],
    model: nn.Module | None = None,
    optimizer: Optimizers = None,
    *,
    step: int | None = None,
    group: AnyGroup | None = None,
    **others: object,
) -> Loaded | None:
    """Load the newest complete checkpoint; None if there is none. All ranks call it.

    The number of ranks and the way the model is sharded may differ from those that
    saved it. What a machine lacks, it gets from another. A checkpoint that is damaged
    on all machines is reported and the one before it is loaded; with ``step``, only
    that one is tried.

    Raises ConfigError if the checkpoint is of another model, or DamagedCheckpoint if
    checkpoints exist but none is intact. Model and optimizer are then unchanged: all
    bytes are verified before the first is loaded.
    """
    return load_state(folder, (model, optimizer), others, exchange_of(group), step)


def load_state(
    folder: str | os.PathLike[str],
    targets: tuple[nn.Module | None, Optimizers],
    others: dict[str, object],
    exchange: ByteExchange,
    step: int | None = None,
) -> Loaded | None:
    """Load into model, optimizer and other objects; see ``load``."""
    storage = open_storage(folder)
    others = with_residuals(targets[0], others)
    found = _find(storage, exchange, step)
    problems: list[str] = []
    for candidate in found:
        try:
            return _load(candidate, storage, exchange, targets, others)
        except DamagedCheckpoint as exc:
            problems.append(str(exc))
            _log.warning("%s; trying an older checkpoint", exc)
    if problems:
        text = "; ".join(problems)
        raise DamagedCheckpoint(f"{storage}: no intact checkpoint: {text}")
    if step is not None:
        raise ConfigError(f"{storage}: no checkpoint of step {step}")
    return None


def _find(
    storage: Storage, exchange: ByteExchange, step: int | None
) -> list[Candidate]:
    """Return the checkpoints to try, the newest first, the same on all ranks."""

    def listing() -> bytes:
        listed, damaged = catalog.list_here(storage)
        for sentence in damaged:
            _log.warning("%s", sentence)
        return msgspec.json.encode(listed)

    gathered = together(exchange, "list the checkpoints", listing)
    listings = [catalog.decode_listing(each) for each in gathered]
    found = catalog.candidates(listings)
    return [c for c in found if step is None or c.listed.step == step]


def find_complete(storage: Storage, exchange: ByteExchange) -> list[Candidate]:
    """Return the checkpoints whose files all exist on some machine, newest first."""
    return [c for c in _find(storage, exchange, None) if not c.missing]


def _load(
    candidate: Candidate,
    storage: Storage,
    exchange: ByteExchange,
    targets: tuple[nn.Module | None, Optimizers],
    others: dict[str, object],
) -> Loaded:
    name = candidate.listed.folder
    _check_files(candidate)
    manifest = _read_manifest(candidate, storage, exchange)
    places = PlaceReader(storage, name, manifest, exchange, candidate.holders)
    reader, planner = Reader(str(storage), places), LoadPlanner()
    prepared: list[tuple[State, list[str], list[ReadItem]]] = []

    def prepare() -> None:
        rest = template(manifest, others, exchange.rank)
        wanted = {**tensors_of(*targets), **rest}
        names = unsaved_names(wanted, manifest)
        planner.set_up_planner(without(wanted, names), reader.read_metadata())
        prepared.append((wanted, names, list(planner.create_local_plan().items)))

    together(exchange, "load the checkpoint", prepare)
    ((state, unsaved, items),) = prepared
    reader.locate(items)
    live, of_objects = _split(items, planner)
    same_size = manifest.world_size == exchange.size
    rest: dict[str, Any] = {}

    def load_objects() -> None:
        reader.read(of_objects, planner)
        rest.update(restore_objects(state, others, exchange.rank, same_size))

    def load_tensors() -> None:
        reader.read(live, planner)
        restore_tensors(*targets, state)
        forget_states(*targets, unsaved)

    together(exchange, f"load the checkpoint ({_UNCHANGED})", load_objects)
    together(exchange, f"load the checkpoint ({_MIXED})", load_tensors)
    if same_size and "random" in state["ranks"][str(exchange.rank)]:
        restore_random_states(state, exchange.rank)
    return Loaded(manifest.step, f"{storage}/{name}", rest)


def _check_files(candidate: Candidate) -> None:
    if candidate.missing:
        name = candidate.listed.folder
        files = ", ".join(f"{name}/{file}" for file in candidate.missing[:3])
        raise DamagedCheckpoint(f"{files} is missing on all machines")


def _split(
    items: list[ReadItem], planner: LoadPlanner
) -> tuple[list[ReadItem], list[ReadItem]]:
    """Return the tensors of model and optimizer themselves, and all the rest."""
    parts: tuple[list[ReadItem], list[ReadItem]] = ([], [])
    for item in items:
        key = planner.mappings[item.dest_index.fqn][0]
        is_live = item.type == LoadItemType.TENSOR and key in LIVE
        parts[0 if is_live else 1].append(item)
    return parts


def _read_manifest(
    candidate: Candidate, storage: Storage, exchange: ByteExchange
) -> Manifest:
    """Return the manifest, from the first rank that has it."""
    name, source = candidate.listed.folder, candidate.manifest_holders[0]
    mine = b""
    if exchange.rank == source:
        with suppress(OSError):  # all ranks then find it damaged
            mine = storage.read(f"{name}/{manifests.NAME}")
    try:
        return manifests.decode(exchange.broadcast(mine, source))
    except ValueError as exc:
        text = f"{name}: the manifest of rank {source} cannot be read: {exc}"
        raise DamagedCheckpoint(text) from None
