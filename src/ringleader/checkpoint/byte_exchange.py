"""Bytes between the ranks of a torch process group, on any backend, or of our Group.

Nothing is pickled: small messages are bytes that the caller encodes, files travel in
pieces from rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringleader.checkpoint.group_adapters import AnyGroup, Work, ranks_of
from ringleader.errors import ConfigError

PIECE_BYTES = 4 << 20
"""A transfer holds a piece at each end, in a few copies."""

MAX_MESSAGE_BYTES = 256 << 20
"""The largest message that is accepted from another rank: a manifest."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """``num_bytes`` go from one rank to another; ``name`` says of what."""

    source: int
    target: int
    name: str
    num_bytes: int


Read = Callable[[Transfer, int, int], bytes]


class ByteExchange:
    """Exchanges bytes with the other ranks of a group; alone without a group."""

    def __init__(self, group: AnyGroup | None) -> None:
        self.group = group
        self._ranks = ranks_of(group) if group is not None else None
        self.rank = self._ranks.rank if self._ranks else 0
        self.size = self._ranks.size if self._ranks else 1
        self._device = self._ranks.device if self._ranks else torch.device("cpu")

    def gather(self, message: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank."""
        if self._ranks is None:
            return [message]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        sizes = [size.to(self._device) for size in sizes]
        mine = torch.tensor([len(message)], dtype=torch.int64, device=self._device)
        self._ranks.all_gather(sizes, mine)
        longest = max(_checked(rank, int(size)) for rank, size in enumerate(sizes))
        padded = _tensor(message.ljust(max(longest, 1), b"\0"), self._device)
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._ranks.all_gather(found, padded)
        return [_bytes(f)[: int(n)] for f, n in zip(found, sizes, strict=True)]

    def broadcast(self, message: bytes, source: int) -> bytes:
        """Return the message of one rank."""
        if self._ranks is None:
            return message
        size = torch.tensor([len(message)], dtype=torch.int64, device=self._device)
        self._ranks.broadcast(size, source)
        if self.rank != source:
            message = bytes(_checked(source, int(size)))
        data = _tensor(message, self._device)
        self._ranks.broadcast(data, source)
        return _bytes(data)

    def transfer(
        self,
        transfers: Sequence[Transfer],
        read: Read,
        write: Callable[[Transfer, bytes], None],
    ) -> None:
        """Run the transfers, of which all ranks give the same list, in pieces.

        ``read(transfer, begin, num_bytes)`` is called at the source, ``write(transfer,
        piece)`` at the target, in order. All ranks take piece after piece of all
        transfers, so no two of them wait for each other.
        """
        mine = [t for t in transfers if self.rank in (t.source, t.target)]
        largest = max((t.num_bytes for t in mine), default=0)
        for begin in range(0, largest, PIECE_BYTES):
            pending = [
                self._start(transfer, begin, read)
                for transfer in mine
                if begin < transfer.num_bytes
            ]
            for transfer, piece, work in pending:
                if work is not None:
                    work.wait()
                if transfer.target == self.rank:
                    write(transfer, _bytes(piece))

    def _start(
        self,
        transfer: Transfer,
        begin: int,
        read: Read,
    ) -> tuple[Transfer, Tensor, Work | None]:
        num_bytes = min(PIECE_BYTES, transfer.num_bytes - begin)
        if transfer.source == self.rank:
            piece = _tensor(read(transfer, begin, num_bytes), self._device)
            if transfer.target == self.rank or self._ranks is None:
                return transfer, piece, None
            work = self._ranks.send(piece, transfer.target)
            return transfer, piece, work
        assert self._ranks is not None, "alone, this rank is the source"
        piece = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        work = self._ranks.receive(piece, transfer.source)
        return transfer, piece, work


def _checked(rank: int, num_bytes: int) -> int:
    if not 0 <= num_bytes <= MAX_MESSAGE_BYTES:
        raise ConfigError(f"rank {rank} announces a message of {num_bytes} bytes")
    return num_bytes


def _tensor(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
