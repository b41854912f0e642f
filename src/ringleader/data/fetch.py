"""``fetch``: files that exist on one machine, for all.

1. All ranks look for the path. One rank of each machine that has it hashes its files.
2. The list of files and hashes goes to all ranks.
3. Each machine without the files finds what its cache lacks, and gets those chunks from
   whoever has them. A chunk is verified before it is written.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch.distributed as dist

from ringleader.checkpoint.agreement import together
from ringleader.checkpoint.byte_exchange import PIECE_BYTES, ByteExchange, Transfer
from ringleader.checkpoint.save import exchange_of
from ringleader.checkpoint.shared_folders import find_disks
from ringleader.checkpoint.storage import FolderStorage
from ringleader.data import listing as listings
from ringleader.data.cached_files import MAX_BYTES, CachedFiles
from ringleader.data.listing import CHUNK_BYTES, Listing, read_chunk
from ringleader.data.transfer_plan import Distribution, Move, waves
from ringleader.deadline import Deadline
from ringleader.decoding import from_json
from ringleader.errors import ConfigError, ProtocolError
from ringleader.settings.cache import cache_folder

_log = logging.getLogger(__name__)

assert CHUNK_BYTES <= PIECE_BYTES  # a chunk arrives in one piece

_LOCK_WAIT_S = 60.0
_MAX_NAME = 200


class _Sighting(msgspec.Struct, frozen=True):
    """Whether a rank sees the path."""

    host: str
    path: str
    is_here: bool


def fetch(
    path: str | os.PathLike[str],
    *,
    source: int | None = None,
    max_bytes: int = MAX_BYTES,
    cache: str | os.PathLike[str] | None = None,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Return a local path to a file or folder that some machines have; all ranks call.

    A machine that has ``path`` uses it. The others get a copy in their cache
    (``RINGLEADER_CACHE``, by default ``~/.cache/ringleader``), of which every chunk was
    verified. What the cache has already is not sent again, also after a break. If
    machines have different data under this path, ``source`` is the rank whose data
    counts.

    Raises ConfigError on all ranks if nobody has the path, if it has more than
    ``max_bytes``, or if a machine cannot store it.
    """
    exchange = exchange_of(group)
    here = Path(path).expanduser().absolute()
    root = cache_folder(cache)
    disks = find_disks(FolderStorage(root), exchange)
    owners = _find_owners(exchange, here, disks)
    mine: list[Listing] = []

    def read() -> bytes:
        if exchange.rank not in owners:
            return b""
        mine.append(listings.list_files(here))
        return mine[0].digest.encode()

    digests = together(exchange, f"read {path}", read)
    origin, same = _choose_origin(here, owners, digests, source)
    sent = listings.encode(mine[0]) if exchange.rank == origin else b""
    try:
        listing = listings.decode(exchange.broadcast(sent, origin))
    except ValueError as exc:
        raise ProtocolError(origin, f"sent {exc}") from None
    have = {disks[rank] for rank in same}
    receivers = [r for r, disk in enumerate(disks) if r == disk and disk not in have]
    found = _Distributor(exchange, here, listing, CachedFiles(root, listing)).run(
        receivers, same, max_bytes
    )
    results = [result.decode() for result in exchange.gather(str(found).encode())]
    users = {disks[rank]: rank for rank in reversed(same)}
    result = Path(results[users.get(disks[exchange.rank], disks[exchange.rank])])

    def check() -> None:
        if not result.exists():
            text = f"{result}: another process of this machine sees it, this one not"
            raise ConfigError(text)

    together(exchange, f"use {path}", check)
    return result


def _find_owners(exchange: ByteExchange, here: Path, disks: list[int]) -> list[int]:
    """Return one rank of each machine that has the path.

    Raises ConfigError, with all machines that were asked, if nobody has it.
    """

    def look() -> bytes:
        name = socket.gethostname()[:_MAX_NAME]
        return msgspec.json.encode(_Sighting(name, str(here), _has_data(here)))

    answers = together(exchange, f"look for {here}", look)
    sightings = [from_json(each, _Sighting) for each in answers]
    owners: dict[int, int] = {}
    for rank, sighting in enumerate(sightings):
        if sighting.is_here:
            owners.setdefault(disks[rank], rank)
    if not owners:
        asked = dict.fromkeys(f"{each.host} ({each.path})" for each in sightings)
        raise ConfigError(
            f"no machine has {here.name!r}: asked {', '.join(asked)}; put it on one of "
            f"them"
        )
    return sorted(owners.values())


def _has_data(path: Path) -> bool:
    """Return whether there is a file, or a folder that is not empty."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _choose_origin(
    here: Path, owners: list[int], digests: Sequence[bytes], source: int | None
) -> tuple[int, list[int]]:
    """Return the rank whose data counts, and all owners of the same data."""
    if source is not None and source not in owners:
        text = f"source={source}: the ranks that have {here.name!r} are {owners}"
        raise ConfigError(text)
    origin = owners[0] if source is None else source
    same = [rank for rank in owners if digests[rank] == digests[origin]]
    if source is None and same != owners:
        other = next(rank for rank in owners if rank not in same)
        text = f"ranks {origin} and {other} have different data under {here.name!r}"
        raise ConfigError(f"{text}; remove one, or pass source={origin} or another")
    return origin, same


class _Distributor:
    """Brings the listed files to the machines that lack them."""

    def __init__(
        self, exchange: ByteExchange, here: Path, listing: Listing, copy: CachedFiles
    ) -> None:
        self._exchange = exchange
        self._here = here
        self._listing = listing
        self._copy = copy
        self._is_receiver = False

    def run(self, receivers: list[int], owners: list[int], max_bytes: int) -> Path:
        """Return the path of this rank's data; all ranks call it."""
        rank = self._exchange.rank
        self._is_receiver = rank in receivers
        try:
            answers = together(
                self._exchange,
                "prepare the cache",
                lambda: self._prepare(max_bytes) if self._is_receiver else b"[]",
            )
            missing = {r: set(from_json(answers[r], list[int])) for r in receivers}
            self._check(missing)
            self._distribute(Distribution(missing, owners))
            together(self._exchange, "complete the cache", self._publish)
        finally:
            self._copy.close()
        return self._copy.path if self._is_receiver else self._here

    def _prepare(self, max_bytes: int) -> bytes:
        missing = self._copy.open(Deadline.after(_LOCK_WAIT_S))
        self._copy.make_room(missing, max_bytes)
        if missing:
            chunks = self._copy.chunks
            num_bytes = sum(chunks[number].num_bytes for number in missing)
            _log.info("fetching %s: %d bytes", self._here.name, num_bytes)
        return msgspec.json.encode(missing)

    def _check(self, missing: dict[int, set[int]]) -> None:
        for rank, numbers in missing.items():
            if numbers and not 0 <= min(numbers) <= max(numbers) < len(
                self._copy.chunks
            ):
                raise ProtocolError(rank, "asks for chunks that do not exist")

    def _publish(self) -> None:
        if self._is_receiver:
            self._copy.publish()

    def _distribute(self, distribution: Distribution) -> None:
        while not distribution.is_done():
            moves, lost = distribution.next_round()
            if lost:
                rank, number = lost[0]
                chunk = self._copy.chunks[number]
                raise ConfigError(
                    f"no machine has intact bytes of {chunk.file} from byte "
                    f"{chunk.begin} on, which rank {rank} needs; did the file change?"
                )
            failed: list[int] = []
            errors: list[Exception] = []
            for wave in waves(moves):
                self._exchange_wave(wave, failed, errors)

            def report(
                failed: list[int] = failed, errors: list[Exception] = errors
            ) -> bytes:
                if errors:
                    raise errors[0]
                return msgspec.json.encode(failed)

            answers = together(self._exchange, f"fetch {self._here.name}", report)
            distribution.apply(
                moves,
                {
                    rank: from_json(answer, list[int])
                    for rank, answer in enumerate(answers)
                },
            )

    def _exchange_wave(
        self, wave: list[Move], failed: list[int], errors: list[Exception]
    ) -> None:
        """Move chunks; an error is kept, because all ranks go on in step."""
        chunks = self._copy.chunks

        def read(transfer: Transfer, begin: int, num_bytes: int) -> bytes:
            # The digest of zeros is wrong, so the target asks somebody else.
            return self._read(int(transfer.name)) or bytes(num_bytes)

        def write(transfer: Transfer, piece: bytes) -> None:
            number = int(transfer.name)
            try:
                if not self._copy.write(number, piece):
                    failed.append(number)
            except ConfigError as exc:
                errors.append(exc)

        self._exchange.transfer(
            [
                Transfer(m.source, m.target, str(m.number), chunks[m.number].num_bytes)
                for m in wave
            ],
            read,
            write,
        )

    def _read(self, number: int) -> bytes | None:
        if self._is_receiver:
            return self._copy.read(number)
        chunk = self._copy.chunks[number]
        return read_chunk(self._listing.path_of(self._here, chunk.file), chunk)
