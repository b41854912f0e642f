"""Checkpoints of weights, optimizer and state; each is written atomically.

Every file has a checksum. A checkpoint with a damaged file is not used.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ringleader.errors import ConfigError, ProtocolError
from ringleader.identity.storage.private_file import sync_directory
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.manifest import DTYPES
from ringleader.paramserver.server.global_weights import GlobalWeights
from ringleader.paramserver.server.storage import checked_files
from ringleader.paramserver.server.storage.journal import end_path
from ringleader.wire import tensor_file
from ringleader.wire.tensor_file import TensorData, TensorSpec

WEIGHTS = "weights.safetensors"
FOLDER = "checkpoints"
KEEP = 5
"""Checkpoints that are kept, so that an earlier one can be evaluated."""

_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_NEW = ".new-"
_NAME = re.compile(r"\d{6,8}")
_JOURNAL_NAME = re.compile(r"journal-(\d{6,8})\.log")

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint on disk."""

    version: int
    path: Path


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """The files of a checkpoint, which match their checksums."""

    found: FoundCheckpoint
    weights: bytes
    optimizer: bytes
    state: State


def find_all(out: Path) -> list[FoundCheckpoint]:
    """Find all checkpoints, the highest version first."""
    folder = out / FOLDER
    names = os.listdir(folder) if folder.is_dir() else []
    found = [FoundCheckpoint(int(n), folder / n) for n in names if _NAME.fullmatch(n)]
    return sorted(found, key=lambda f: f.version, reverse=True)


def find_journals(out: Path) -> dict[int, Path]:
    """Find all journals, by the version that they follow."""
    found = {p: _JOURNAL_NAME.fullmatch(p.name) for p in out.iterdir()}
    return {int(match[1]): path for path, match in found.items() if match}


def journal_path(out: Path, version: int) -> Path:
    """Return the path of the journal that follows the checkpoint of ``version``."""
    return out / f"journal-{version:06d}.log"


def write(out: Path, version: int, weights: GlobalWeights, state: State) -> None:
    """Write a checkpoint atomically, then remove what it makes obsolete."""
    folder = out / FOLDER
    new = folder / f"{_NEW}{secrets.token_hex(4)}"
    try:
        new.mkdir(parents=True)
        tensors = weights.manifest.tensors(weights.model)
        parts = [_part(name, tensor) for name, tensor in tensors.items()]
        checked_files.write_tensors(new / WEIGHTS, parts)
        kept, optimizer = _flatten(weights.optimizer.state_dict())
        checked_files.write_tensors(new / _OPTIMIZER, kept)
        text = msgspec.json.encode({**state, "optimizer": optimizer})
        checked_files.write_json(new / _STATE, text)
        sync_directory(new)
        _rename(new, folder / f"{version:06d}")
        publish(out, version)
        _remove_obsolete(out)
    except OSError as exc:
        shutil.rmtree(new, ignore_errors=True)  # frees the disk if it is full
        raise ConfigError(f"{new}: cannot be written: {exc.strerror}") from exc


def read(found: FoundCheckpoint) -> CheckpointContent:
    """Read the files of a checkpoint; DamagedFile if one of them is damaged."""
    return CheckpointContent(
        found,
        checked_files.read_tensors(found.path / WEIGHTS),
        checked_files.read_tensors(found.path / _OPTIMIZER),
        msgspec.json.decode(checked_files.read_json(found.path / _STATE)),
    )


def load(content: CheckpointContent, weights: GlobalWeights) -> None:
    """Load a checkpoint into ``weights``; ConfigError if it is of another task."""
    try:
        tensors = bodies.read_weights(weights.manifest, content.weights)
        optimizer = _restore(content.optimizer, content.state["optimizer"])
        weights.manifest.load(weights.model, tensors)
        weights.optimizer.load_state_dict(optimizer)
    except (ProtocolError, ValueError, KeyError) as exc:
        text = f"{content.found.path}: cannot resume from it: {exc}"
        raise ConfigError(f"{text}; is it of another task? choose another --out") from (
            exc
        )


def _part(name: str, tensor: Tensor) -> TensorData:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return TensorData(
        name, TensorSpec(DTYPES[tensor.dtype], tuple(tensor.shape)), raw.data
    )


def _rename(new: Path, path: Path) -> None:
    """Rename ``new`` to ``path``, unless that exists: then it has the same weights."""
    if path.is_dir():
        shutil.rmtree(new)
        return
    os.replace(new, path)
    sync_directory(path.parent)


def publish(out: Path, version: int) -> None:
    """Make weights.safetensors the weights of the checkpoint of ``version``."""
    source, path = out / FOLDER / f"{version:06d}" / WEIGHTS, out / WEIGHTS
    new = path.with_name(f"{_NEW}{path.name}")
    new.unlink(missing_ok=True)
    try:
        os.link(source, new)
    except OSError:  # the file system has no hard links
        shutil.copyfile(source, new)
    os.replace(new, path)


def _remove_obsolete(out: Path) -> None:
    """Remove old checkpoints and journals, and what crashes left behind.

    The journal between the last two checkpoints stays: with it, nothing is lost if the
    last one is damaged.
    """
    checkpoints = find_all(out)
    for found in checkpoints[KEEP:]:
        shutil.rmtree(found.path, ignore_errors=True)
    for left in (out / FOLDER).glob(f"{_NEW}*"):
        shutil.rmtree(left, ignore_errors=True)
    last_but_one = checkpoints[:2][-1].version
    for version, journal in find_journals(out).items():
        if version < last_but_one:
            for path in (journal, end_path(journal)):
                with suppress(OSError):
                    path.unlink()


def _flatten(state: Mapping[str, Any]) -> tuple[list[TensorData], State]:
    """Split the state of an optimizer into tensors, and JSON for the rest."""
    parts: list[TensorData] = []
    plain: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            name = f"{index}/{key}"
            if isinstance(value, Tensor):
                parts.append(_part(name, value))
            else:
                plain.setdefault(str(index), {})[key] = value
    specs = {p.name: [p.spec.dtype, list(p.spec.shape)] for p in parts}
    return parts, {
        "tensors": specs,
        "values": plain,
        "groups": state["param_groups"],
    }


def _restore(file: bytes, kept: State) -> dict[str, Any]:
    specs = {
        name: TensorSpec(d, tuple(shape))
        for name, (d, shape) in kept["tensors"].items()
    }
    data = tensor_file.read(memoryview(bytearray(file)), specs)
    dtypes = {word: dtype for dtype, word in DTYPES.items()}
    state: dict[int, dict[str, Any]] = {
        int(index): dict(values) for index, values in kept["values"].items()
    }
    for name, spec in specs.items():
        index, _, key = name.partition("/")
        flat = torch.frombuffer(data[name], dtype=dtypes[spec.dtype])
        state.setdefault(int(index), {})[key] = flat.reshape(spec.shape).clone()
    return {"state": state, "param_groups": kept["groups"]}
