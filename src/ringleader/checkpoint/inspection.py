"""What the checkpoints of one machine contain, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.checkpoint import catalog, manifest
from ringleader.checkpoint.catalog import Found
from ringleader.checkpoint.place_reader import PlaceReader
from ringleader.checkpoint.storage import Storage


@dataclass(frozen=True, slots=True)
class Report:
    """A checkpoint as this machine sees it."""

    folder: str
    found: Found | None
    """None if the save did not finish, or the manifest is damaged."""
    held: int
    """Files of the checkpoint that are here."""
    problem: str = ""


def inspect(storage: Storage) -> list[Report]:
    """Report on all checkpoints, the newest first, by names and sizes of files."""
    return [_inspect(storage, folder) for folder in catalog.folders(storage)]


def verify(storage: Storage, found: Found) -> list[str]:
    """Read every byte that this machine holds; return sentences about damage."""
    reader = PlaceReader(storage, found.folder, found.manifest)
    problems: dict[str, str] = {}
    for place in found.manifest.places():
        path = f"{found.folder}/{place.file}"
        if place.file in problems or storage.size(path) is None:
            continue
        if storage.size(path) != found.manifest.files[place.file]:
            problems[place.file] = f"{storage}/{path} has another size than when saved"
        elif reader.read_here(place) is None:
            problems[place.file] = f"{storage}/{path} is damaged"
    return list(problems.values())


def _inspect(storage: Storage, folder: str) -> Report:
    try:
        found = catalog.read_manifest(storage, folder)
    except ValueError as exc:
        return Report(folder, None, 0, str(exc))
    if found is None:
        path = f"{storage}/{folder}/{manifest.NAME}"
        return Report(folder, None, 0, f"the save did not finish: no {path}")
    held = sum(
        storage.size(f"{folder}/{name}") == size
        for name, size in found.manifest.files.items()
    )
    return Report(folder, found, held)
