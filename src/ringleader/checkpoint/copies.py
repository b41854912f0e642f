"""Copies of each shard on another machine, so that a lost machine loses nothing."""

from __future__ import annotations

from contextlib import suppress

from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import ByteExchange, Transfer
from ringleader.checkpoint.manifest import Manifest, rank_of
from ringleader.checkpoint.place_reader import PlaceReader
from ringleader.checkpoint.storage import NewFile, Storage
from ringleader.errors import ConfigError


def plan_copies(files: dict[str, int], disks: list[int]) -> list[Transfer]:
    """Return which rank sends its shard to which; none if all see one folder.

    ``files`` has the size of each shard; ``disks[rank]`` is the first rank with
    the same folder. Every folder sends its shards to the next one in the ring of
    folders, where the ranks take turns in receiving.
    """
    ring = sorted(set(disks))
    if len(ring) == 1:
        return []
    members = {disk: [r for r, d in enumerate(disks) if d == disk] for disk in ring}
    after = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    transfers: list[Transfer] = []
    for name, num_bytes in files.items():
        source = rank_of(name)
        receivers = members[after[disks[source]]]
        turn = members[disks[source]].index(source) % len(receivers)
        transfers.append(Transfer(source, receivers[turn], name, num_bytes))
    return transfers


def send_copies(
    storage: Storage,
    folder: str,
    manifest: Manifest,
    exchange: ByteExchange,
    disks: list[int],
) -> None:
    """Send each shard to the next machine, which writes and verifies it.

    Raises ConfigError on all ranks if a copy could not be written or is damaged.
    """
    transfers = plan_copies(manifest.files, disks)
    copies = {
        transfer.name: _Copy(storage, f"{folder}/{transfer.name}")
        for transfer in transfers
        if transfer.target == exchange.rank
    }

    def read(transfer: Transfer, begin: int, num_bytes: int) -> bytes:
        data = b""
        with suppress(OSError):  # the receiver then finds the copy damaged
            data = storage.read(f"{folder}/{transfer.name}", begin, num_bytes)
        return data.ljust(num_bytes, b"\0")

    def finish() -> None:
        reader = PlaceReader(storage, folder, manifest)
        for name, copy in copies.items():
            copy.publish()
            places = [place for place in manifest.places() if place.file == name]
            if any(reader.read_here(place) is None for place in places):
                raise ConfigError(f"{storage}/{folder}/{name}: the copy is damaged")

    try:
        exchange.transfer(transfers, read, lambda t, data: copies[t.name].append(data))
        together(exchange, "copy the shards to another machine", finish)
    finally:
        for copy in copies.values():
            copy.discard()


class _Copy:
    """A shard of another machine while it arrives.

    An error is kept until ``publish``: the transfers of all ranks go on in step.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._error: OSError | None = None
        self._file: NewFile | None = None
        try:
            self._file = storage.create(path)
        except OSError as exc:
            self._error = exc

    def append(self, piece: bytes) -> None:
        if self._error is None and self._file is not None:
            try:
                self._file.write(piece)
            except OSError as exc:
                self._error = exc

    def publish(self) -> None:
        """Give the copy its name; OSError if a piece of it could not be written."""
        if self._error is not None:
            raise self._error
        if self._file is not None:
            self._file.publish()

    def discard(self) -> None:
        if self._file is not None:
            self._file.discard()
