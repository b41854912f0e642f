"""PlaceReader fetches verified bytes of a checkpoint, from this machine or another."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence

import msgspec

from ringleader.checkpoint.byte_exchange import ByteExchange, Transfer
from ringleader.checkpoint.manifest import Manifest, Place
from ringleader.checkpoint.storage import Storage
from ringleader.decoding import from_json
from ringleader.errors import ConfigError

_log = logging.getLogger(__name__)

_WAVE_BYTES = 64 << 20
"""Bytes that a rank receives from others before it uses them."""


class DamagedCheckpoint(ConfigError):
    """Bytes of a checkpoint are missing or damaged on all machines."""


class _Request(msgspec.Struct, frozen=True):
    """A rank asks for a place: before ``locate`` has found who has it, of all but
    ``not_from``; then of ``source``."""

    place: Place
    not_from: list[int] = []
    source: int = -1


class PlaceReader:
    """Reads places of one checkpoint; with an exchange, all ranks must fetch together.

    ``holders`` names the ranks whose machine holds a file.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        manifest: Manifest,
        exchange: ByteExchange | None = None,
        holders: dict[str, list[int]] | None = None,
    ) -> None:
        self.manifest = manifest
        self._storage = storage
        self._folder = folder
        self._exchange = exchange or ByteExchange(None)
        self._holders = holders or {}
        self._known = frozenset(manifest.places())
        self._sources: dict[Place, int] = {}
        """The rank that has intact bytes of a place."""
        self._read: set[Place] = set()
        """Places that were looked for on this machine."""

    def locate(self, places: Sequence[Place]) -> None:
        """Find out who has intact bytes of each place, before anything is loaded.

        Each machine reads and verifies its own files; no bytes of them are sent.
        Raises DamagedCheckpoint, on all ranks, if no machine has intact bytes that one
        of them needs.
        """
        me = self._exchange.rank
        wanted = [_Request(p, [me]) for p in places if not self._is_intact_here(p)]
        while any(requests := self._gather(wanted)):
            asked = self._choose(requests)
            wanted = []
            for (rank, request, source), is_intact in self._ask(asked):
                if rank == me and is_intact:
                    self._sources[request.place] = source
                elif rank == me:
                    refused = [*request.not_from, source]
                    wanted.append(_Request(request.place, refused))

    def fetch(self, places: Sequence[Place]) -> Iterator[tuple[Place, bytes]]:
        """Return the bytes of places that were located, in any order.

        Raises DamagedCheckpoint, on this rank, after all others if some have changed
        since then.
        """
        me = self._exchange.rank
        lost: list[Place] = []
        local = [place for place in places if self._sources[place] == me]
        for place in local:
            if (data := self.read_here(place)) is not None:
                yield place, data
            else:
                lost.append(place)
        remote = [
            _Request(place, source=self._sources[place])
            for place in places
            if self._sources[place] != me
        ]
        for place, data in self._received(remote):
            if hashlib.sha256(data).hexdigest() == place.sha256:
                yield place, data
            else:
                lost.append(place)
        if lost:
            text = f"{self._path(lost[0])} was changed while it was loaded"
            raise DamagedCheckpoint(text)

    def read_here(self, place: Place) -> bytes | None:
        """Return bytes of a file of this machine; None if missing or damaged."""
        data = self._read_piece(place, 0, place.num_bytes)
        if data is not None and hashlib.sha256(data).hexdigest() == place.sha256:
            return data
        if data is not None:
            _log.warning("%s is damaged: looking for another copy", self._path(place))
        return None

    def _gather(self, wanted: list[_Request]) -> list[list[_Request]]:
        """Return the requests of all ranks."""
        encoded = self._exchange.gather(msgspec.json.encode(wanted))
        requests = [from_json(e, list[_Request]) for e in encoded]
        for rank, each in enumerate(requests):
            if any(request.place not in self._known for request in each):
                raise ConfigError(f"rank {rank} asks for what no checkpoint holds")
        return requests

    def _choose(
        self, requests: list[list[_Request]]
    ) -> list[tuple[int, _Request, int]]:
        """Choose whom to ask for each request of each rank; the same on all ranks."""
        found: list[tuple[int, _Request, int]] = []
        for rank, wanted in enumerate(requests):
            for number, request in enumerate(wanted):
                holders = self._holders.get(request.place.file, [])
                usable = [r for r in holders if r not in request.not_from]
                if not usable:
                    raise DamagedCheckpoint(self._lost(request.place, rank))
                found.append((rank, request, usable[(rank + number) % len(usable)]))
        return found

    def _ask(
        self, asked: list[tuple[int, _Request, int]]
    ) -> Iterator[tuple[tuple[int, _Request, int], bool]]:
        """Return whether the bytes of each request are intact at their source."""
        me = self._exchange.rank
        mine = bytes(
            self._is_intact_here(request.place)
            for _, request, source in asked
            if source == me
        )
        answers = [iter(each) for each in self._exchange.gather(mine)]
        for each in asked:
            yield each, bool(next(answers[each[2]], 0))

    def _is_intact_here(self, place: Place) -> bool:
        """Read and verify a place, once; if it is intact, this rank is its source."""
        me = self._exchange.rank
        if place not in self._read:
            self._read.add(place)
            if self.read_here(place) is not None:
                self._sources[place] = me
        return self._sources.get(place) == me

    def _received(self, remote: list[_Request]) -> Iterator[tuple[Place, bytes]]:
        """Send what other ranks request; return what this rank requests."""
        me = self._exchange.rank
        sources = [
            (rank, request, self._checked_source(rank, request))
            for rank, requests in enumerate(self._gather(remote))
            for request in requests
        ]
        for wave in _waves(sources):
            received = self._receive(wave)
            for _, request, _ in (w for w in wave if w[0] == me):
                yield request.place, bytes(received[_name(request.place)])

    def _checked_source(self, rank: int, request: _Request) -> int:
        if not 0 <= request.source < self._exchange.size:
            raise ConfigError(f"rank {rank} asks rank {request.source}, which is none")
        return request.source

    def _receive(self, wave: list[tuple[int, _Request, int]]) -> dict[str, bytearray]:
        """Run the transfers of a wave; return what came to this rank, by name."""
        places = {_name(request.place): request.place for _, request, _ in wave}
        received: dict[str, bytearray] = {name: bytearray() for name in places}

        def read(transfer: Transfer, begin: int, num_bytes: int) -> bytes:
            piece = self._read_piece(places[transfer.name], begin, num_bytes)
            # The digest of zeros is wrong, so the target sees that it is lost.
            return piece if piece is not None else bytes(num_bytes)

        self._exchange.transfer(
            [
                Transfer(source, rank, _name(request.place), request.place.num_bytes)
                for rank, request, source in wave
            ],
            read,
            lambda transfer, piece: received[transfer.name].extend(piece),
        )
        return received

    def _read_piece(self, place: Place, begin: int, num_bytes: int) -> bytes | None:
        path = f"{self._folder}/{place.file}"
        try:
            data = self._storage.read(path, place.begin + begin, num_bytes)
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.warning("%s cannot be read: %s", self._path(place), exc.strerror)
            return None
        return data if len(data) == num_bytes else None

    def _path(self, place: Place) -> str:
        return f"{self._storage}/{self._folder}/{place.file}"

    def _lost(self, place: Place, rank: int) -> str:
        names = [name for name, at in _named_places(self.manifest) if at == place]
        holders = self._holders.get(place.file, [])
        where = f"damaged on the machines of ranks {holders}"
        if not holders:
            where = "missing or damaged"
        return (
            f"{self._folder}/{place.file} is {where}: rank {rank} cannot load "
            f"{', '.join(names[:3]) or 'a value'}"
        )


def _waves(
    sources: list[tuple[int, _Request, int]],
) -> Iterator[list[tuple[int, _Request, int]]]:
    """Split the transfers so that no rank receives more than the limit in a wave."""
    waves: list[list[tuple[int, _Request, int]]] = []
    sums: dict[int, int] = {}
    for transfer in sources:
        rank, request, _ = transfer
        begun = sums.get(rank, 0)
        sums[rank] = begun + request.place.num_bytes
        number = begun // _WAVE_BYTES
        waves += [[] for _ in range(number + 1 - len(waves))]
        waves[number].append(transfer)
    yield from (wave for wave in waves if wave)


def _name(place: Place) -> str:
    return f"{place.file}:{place.begin}:{place.num_bytes}"


def _named_places(manifest: Manifest) -> Iterator[tuple[str, Place]]:
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            yield name, chunk.place
    yield from manifest.values.items()
