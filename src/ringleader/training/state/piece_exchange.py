"""PieceExchange moves pieces of a state between members and hashes them on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ringleader.groups.group import Group
from ringleader.groups.work import Work
from ringleader.training.kill_points import reach
from ringleader.training.state.digests import Hasher
from ringleader.training.state.pieces import (
    ByteViews,
    Piece,
    share_out,
    size_of,
)

_WINDOW = 4
"""Pieces under way between two members."""

_HASHING_THREADS = 4


class _Pending:
    """Operations that were begun, oldest first, and what follows each."""

    def __init__(self) -> None:
        self._items: deque[tuple[list[Work], Callable[[], None]]] = deque()

    def add(self, works: list[Work], then: Callable[[], None]) -> None:
        self._items.append((works, then))
        if len(self._items) >= _WINDOW:
            self.finish_one()

    def finish_one(self) -> None:
        works, then = self._items.popleft()
        for work in works:
            work.wait()
        then()

    def finish(self) -> None:
        while self._items:
            self.finish_one()


class PieceExchange:
    """Moves pieces between the ranks of a group, in the order of the pieces."""

    def __init__(
        self,
        group: Group,
        views: ByteViews,
        hasher: Hasher,
        progress: Callable[[int], None] | None,
        *,
        keeps: bool = False,
    ) -> None:
        self._group = group
        self._keeps = keeps
        """Whether the tensors here stay as they are until all has arrived."""
        self._views = views
        self._hasher = hasher
        self._progress = progress
        self._done = 0

    def hash(self, pieces: Sequence[Piece]) -> None:
        """Hash pieces as they are here."""

        def add(piece: Piece) -> None:
            self._hasher.add(piece, self._views.read(piece))

        with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing frees the GIL
            list(pool.map(add, pieces))

    def move(
        self, pieces: Sequence[Piece], sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        """Send all pieces from the sources to the targets; all ranks call it.

        Sources and targets have hashed every piece when it returns.
        """
        if len(sources) == 1 and len(targets) > 1:
            self._broadcast(pieces, sources[0], targets)
            return
        chosen = share_out(map(size_of, pieces), len(sources))
        rank = self._group.rank
        pending = _Pending()
        if rank in targets:
            self._receive(pieces, [sources[i] for i in chosen])
        elif rank in sources:
            me = sources.index(rank)
            for piece, source in zip(pieces, chosen, strict=True):
                data = self._views.read(piece)
                to = targets if source == me else ()
                works = [self._group.send(data, t, async_op=True) for t in to]
                self._hasher.add(piece, data)
                pending.add(works, lambda data=data: self._count(data))  # type: ignore[misc]
            pending.finish()

    def _receive(self, pieces: Sequence[Piece], senders: Sequence[int]) -> None:
        """Receive pieces of all senders at once; each sends its own in order."""
        queues = {s: _Pending() for s in dict.fromkeys(senders)}
        for piece, sender in zip(pieces, senders, strict=True):
            room = self._room(piece)
            work = self._group.recv(room, sender, async_op=True)
            queues[sender].add([work], lambda p=piece, r=room: self._store(p, r))  # type: ignore[misc]
        for queue in queues.values():
            queue.finish()

    def _broadcast(
        self, pieces: Sequence[Piece], source: int, targets: Sequence[int]
    ) -> None:
        rank = self._group.rank
        pending = _Pending()
        for piece in pieces:
            if rank == source:
                room = self._views.read(piece)
            elif rank in targets:
                room = self._room(piece)
            else:
                room = torch.empty(size_of(piece), dtype=torch.uint8)
            work = self._group.broadcast(room, source, async_op=True)
            pending.add([work], self._after_broadcast(piece, room, source, targets))
        pending.finish()

    def _after_broadcast(
        self, piece: Piece, room: Tensor, source: int, targets: Sequence[int]
    ) -> Callable[[], None]:
        def then() -> None:
            if self._group.rank in targets:
                self._store(piece, room)
            elif self._group.rank == source:
                self._hasher.add(piece, room)
                self._count(room)

        return then

    def _room(self, piece: Piece) -> Tensor:
        """Return the memory to receive a piece into."""
        if self._keeps:
            self._views.stage(piece)
        if self._views.is_in_place(piece):
            return self._views.read(piece)
        return torch.empty(size_of(piece), dtype=torch.uint8)

    def _store(self, piece: Piece, data: Tensor) -> None:
        if not self._views.is_in_place(piece):
            self._views.write(piece, data)
        self._hasher.add(piece, data)
        self._count(data)

    def _count(self, data: Tensor) -> None:
        reach("copy:piece")
        self._done += data.nbytes
        if self._progress is not None:
            self._progress(self._done)
