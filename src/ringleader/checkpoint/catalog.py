"""Finds checkpoints: what one machine holds, and which are complete on all together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ringleader.checkpoint import manifest
from ringleader.checkpoint.manifest import Manifest
from ringleader.checkpoint.storage import Storage
from ringleader.decoding import from_json
from ringleader.errors import ConfigError

_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{8})")

MAX_LISTED = 32
"""Checkpoints that a machine offers, the newest ones."""


def checkpoint_name(step: int, checkpoint_id: str) -> str:
    """Return the name of a checkpoint's folder; they sort by step."""
    return f"step-{step:08d}-{checkpoint_id[:8]}"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint of which this machine has the manifest."""

    folder: str
    manifest: Manifest


class Listed(msgspec.Struct, frozen=True):
    """What a machine says about a checkpoint: all its files, and those it holds."""

    folder: str
    id: str
    step: int
    created: str
    files: list[str]
    held: list[str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint in the view of all machines."""

    listed: Listed
    holders: dict[str, list[int]]
    """The ranks whose machine holds a file."""
    manifest_holders: list[int]

    @property
    def missing(self) -> list[str]:
        """The files that no machine holds."""
        return [name for name in self.listed.files if not self.holders.get(name)]


def folders(storage: Storage) -> list[str]:
    """Return the folders of all checkpoints, the newest step first."""
    found = [name for name in storage.names() if _NAME.fullmatch(name)]
    return sorted(found, key=lambda name: int(name.split("-")[1]), reverse=True)


def read_manifest(storage: Storage, folder: str) -> Found | None:
    """Return the checkpoint in a folder; None if it was not finished.

    Raises ValueError if its manifest is damaged.
    """
    path = f"{folder}/{manifest.NAME}"
    size = storage.size(path)
    if size is None:
        return None
    if size > manifest.MAX_BYTES:
        raise ValueError(f"{storage}/{path} is larger than any manifest")
    try:
        return Found(folder, manifest.decode(storage.read(path)))
    except (OSError, ValueError) as exc:
        raise ValueError(f"{storage}/{path} is damaged: {exc}") from None


def decode_listing(data: bytes) -> list[Listed]:
    """Return what another machine lists; ValueError if a name leads elsewhere."""
    try:
        listing = from_json(data, list[Listed])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"not a list of checkpoints: {exc}"[:200]) from None
    for listed in listing[: MAX_LISTED + 1]:
        name = checkpoint_name(listed.step, listed.id)
        if listed.folder != name or not _NAME.fullmatch(name):
            raise ValueError(f"no folder of a checkpoint: {listed.folder[:80]!r}")
    if len(listing) > MAX_LISTED:
        raise ValueError(f"more than {MAX_LISTED} checkpoints")
    return listing


def list_here(storage: Storage) -> tuple[list[Listed], list[str]]:
    """Return the checkpoints of this machine, and sentences about damaged ones."""
    listed: list[Listed] = []
    damaged: list[str] = []
    for folder in folders(storage)[:MAX_LISTED]:
        try:
            found = read_manifest(storage, folder)
            if found is not None:
                listed.append(_listed(storage, found))
        except ValueError as exc:
            damaged.append(str(exc))
    return listed, damaged


def newest_here(storage: Storage) -> Found:
    """Return the newest complete checkpoint of a storage that all ranks share."""
    listed, damaged = list_here(storage)
    for each in _newest_first(listed):
        if set(each.files) <= set(each.held):
            found = read_manifest(storage, each.folder)
            if found is not None:
                return found
    raise ConfigError("; ".join([f"{storage}: no complete checkpoint here", *damaged]))


def candidates(listings: Sequence[Iterable[Listed]]) -> list[Candidate]:
    """Return the checkpoints of all ranks, the newest first; a pure function, so all
    ranks find the same. ``listings[rank]`` is what the machine of that rank lists."""
    seen: dict[str, Candidate] = {}
    for rank, listing in enumerate(listings):
        for listed in listing:
            candidate = seen.setdefault(listed.id, Candidate(listed, {}, []))
            candidate.manifest_holders.append(rank)
            for name in listed.held:
                candidate.holders.setdefault(name, []).append(rank)
    order = _newest_first([candidate.listed for candidate in seen.values()])
    return [seen[listed.id] for listed in order]


def _newest_first(listed: Iterable[Listed]) -> list[Listed]:
    return sorted(listed, key=lambda e: (e.step, e.created, e.id), reverse=True)


def _listed(storage: Storage, found: Found) -> Listed:
    kept = found.manifest
    held = [
        name
        for name, num_bytes in kept.files.items()
        if storage.size(f"{found.folder}/{name}") == num_bytes
    ]
    return Listed(
        found.folder, kept.id, kept.step, kept.created, list(kept.files), held
    )
