"""Copies the state to members that lack it, at a step boundary: pause and copy.

All members of the group call ``transfer_state`` with the same roles:

1. The first source sends its layout, manifest and plain values to all.
2. Each adopter says whether they fit. If one refuses, nobody copies anything.
3. Several sources send pieces to the adopters at once; a single source broadcasts them
   to several adopters. Everybody hashes what it has.
4. All compare all digests. A tensor that differs from most sources' is copied again.
5. Members that keep their own state until then overwrite it with what has arrived.

A lost member breaks the group. The next view then does it again from the beginning, or
goes on from a state that was kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
from torch import Tensor

from ringleader.checkpoint.byte_exchange import ByteExchange
from ringleader.decoding import from_msgpack
from ringleader.errors import Expelled, LayoutMismatch, PeerFailed, ProtocolError
from ringleader.groups.group import Group
from ringleader.training.kill_points import reach
from ringleader.training.state import digests, manifest
from ringleader.training.state.digests import VALUES, Digests, Hasher
from ringleader.training.state.manifest import Layout, Manifest
from ringleader.training.state.piece_exchange import PieceExchange
from ringleader.training.state.pieces import ByteViews, cut, size_of
from ringleader.training.state.replicated_state import ReplicatedState
from ringleader.training.state.transfer_messages import (
    Answer,
    Offer,
    Roles,
    Transferred,
    decode_all,
)
from ringleader.training.state.verdict import Repair, find_repairs

__all__ = ["Roles", "Transferred", "repair_state", "transfer_state"]

_SLOWEST = 1e6
"""Bytes per second below which a transfer is given up. The control plane notices dead
machines long before; this bounds one that hangs."""

Progress = Callable[[int], None]
"""Called with the bytes that were sent or received so far."""

Commit = Callable[[bytes], None]


def transfer_state(  # noqa: PLR0913 - one keyword each
    group: Group,
    state: ReplicatedState,
    roles: Roles,
    *,
    names: Sequence[str] = (),
    progress: Progress | None = None,
    is_warm: bool = False,
    keeps: bool = True,
    commit: Commit | None = None,
) -> Transferred:
    """Give the adopters the sources' state; all members of the group call it.

    ``names`` are the machines' names by rank, for messages. Members that ``keeps`` is
    True on receive into new memory, and overwrite their tensors when everything is here
    and was compared: if this raises, their state is as before. It was overwritten in
    part on those that do not. ``commit`` is called with the plain values before a state
    is overwritten in full, from which on nothing can fail that others have a part in.

    An adopter ``is_warm`` if it has followed the run, or a copy was begun before: if
    all are, only tensors that differ are copied. A source is, if adopters are following
    it: it hashes its state while they get the last steps.

    Raises LayoutMismatch on an adopter whose model differs; errors of the group if a
    member is lost. A member whose copy is still wrong after a second one raises
    Expelled, and the others PeerFailed.
    """
    begin = time.monotonic()
    transfer = _Transfer(group, state, roles, names, progress)
    transfer.is_warm, transfer.keeps = is_warm, keeps
    with _long_timeout(group, 0):
        offered = transfer.offer()
        transfer.hash_early()
        refused = transfer.refusals()
    if refused:
        return Transferred(refused=refused)
    with _long_timeout(group, offered.num_bytes):
        hashed = transfer.copy()
        repaired = transfer.compare(hashed)
    transfer.finish(commit)
    return Transferred(
        num_bytes=offered.num_bytes,
        copied_bytes=transfer.copied_bytes,
        seconds=time.monotonic() - begin,
        is_exact=transfer.is_exact,
        root=transfer.root,
        repaired=tuple(repaired),
    )


def repair_state(
    group: Group, state: ReplicatedState, *, names: Sequence[str] = ()
) -> Transferred:
    """Compare the states of all members and repair those that differ from most.

    All members of an exact class call it at the same step boundary.
    """
    roles = Roles(tuple(range(group.size)), ())
    return transfer_state(group, state, roles, names=names)


class _Transfer:
    """One call of ``transfer_state`` on one member."""

    def __init__(
        self,
        group: Group,
        state: ReplicatedState,
        roles: Roles,
        names: Sequence[str],
        progress: Progress | None,
    ) -> None:
        self._group = group
        self._exchange = ByteExchange(group)
        self._state = state
        self._roles = roles
        self._names = names
        self._progress = progress
        self._rank = group.rank
        self._lacks = group.rank in roles.adopters
        self._takes_part = False
        self._refusal = ""
        self._has_new_values = False
        self.is_warm = False
        self.keeps = True
        self._hasher: Hasher | None = None
        self.is_exact = True
        self.copied_bytes = 0
        self.root = b""

    def offer(self) -> Manifest:
        """Send the first source's manifest and layout to all; returns the manifest."""
        first = self._roles.sources[0]
        mine = b""
        own: Manifest | None = None
        if self._rank in self._roles.sources:
            own, self._tensors = self._state.snapshot()
            if self._rank == first:
                layout = manifest.encode(self._state.layout())
                mine = msgspec.msgpack.encode(Offer(layout, manifest.encode(own)))
        data = self._exchange.broadcast(mine, first)
        try:
            offer = from_msgpack(data, Offer)
            self._offered = manifest.decode_manifest(offer.manifest)
            theirs = manifest.decode_layout(offer.layout)
        except (msgspec.MsgspecError, ValueError) as exc:
            raise ProtocolError(first, f"offered no valid state: {exc}") from None
        if own is not None:
            self._lacks = own.tensors != self._offered.tensors
            values = self._offered.values if self._lacks else own.values
            self._offered = msgspec.structs.replace(self._offered, values=values)
        if self._lacks:
            self._prepare(theirs)
        return self._offered

    def _prepare(self, theirs: Layout) -> None:
        self._refusal = manifest.difference(self._state.layout(), theirs)
        if not self._refusal:
            try:
                self._tensors = self._state.targets(self._offered)
            except LayoutMismatch as exc:
                self._refusal = str(exc)

    def refusals(self) -> dict[int, str]:
        """Return which ranks refuse, and why; raises LayoutMismatch on those."""
        mine = Answer(
            self._refusal[:4000],
            self._state.fingerprint(),
            self._lacks,
            self.is_warm,
        )
        gathered = self._exchange.gather(msgspec.msgpack.encode(mine))
        answers = decode_all(gathered, msgspec.msgpack.Decoder(Answer).decode)
        if self._refusal:
            there = self._name(self._roles.sources[0])
            raise LayoutMismatch(
                f"the model or optimizer of this machine differs from that of {there} "
                f"(there): {self._refusal}. Start the same script with the same "
                f"settings on all machines."
            )
        able = [rank for rank in self._roles.sources if not answers[rank].lacks]
        lacking = [rank for rank, answer in enumerate(answers) if answer.lacks]
        involved = {answers[rank].fingerprint for rank in (*able, *lacking)}
        self.is_exact = len(involved) == 1
        sources = able if self.is_exact else able[:1]
        self._roles = Roles(tuple(sources), tuple(lacking))
        self.is_warm = self.is_exact and all(answers[rank].is_warm for rank in lacking)
        return {rank: a.refusal for rank, a in enumerate(answers) if a.refusal}

    def hash_early(self) -> None:
        """Hash the state of a source before its adopters are there."""
        is_source = self._rank in self._roles.sources and not self._lacks
        if self.is_warm and is_source:
            self._hasher = Hasher(self._offered.tensors)
            views = ByteViews(self._tensors)
            pieces = PieceExchange(self._group, views, self._hasher, None)
            pieces.hash(cut(self._offered.tensors))

    def copy(self) -> Hasher:
        """Move pieces to the adopters; returns the hashes of all pieces here."""
        hasher = self._hasher or Hasher(self._offered.tensors)
        self._takes_part = self._rank in (*self._roles.sources, *self._roles.adopters)
        self._views = ByteViews(
            self._tensors if self._takes_part else {}, self._arrived()
        )
        pieces = self._pieces(hasher, self._progress)
        moved = cut(self._offered.tensors)
        if self.is_warm:
            if self._takes_part and self._hasher is None:
                pieces.hash(moved)
            differing = {repair.name for repair in self._repairs(hasher)}
            moved = cut([e for e in self._offered.tensors if e.name in differing])
        self.copied_bytes = sum(map(size_of, moved))
        pieces.move(moved, self._roles.sources, self._roles.adopters)
        return hasher

    def _arrived(self) -> dict[str, Tensor] | None:
        """Return what came in a copy before that did not end, of an adopter."""
        if self._rank not in self._roles.adopters:
            return None
        arrived = self._state.arrived
        sizes = {entry.name: entry.num_bytes for entry in self._offered.tensors}
        for name in [n for n, t in arrived.items() if sizes.get(n) != t.nbytes]:
            del arrived[name]
        self._state.is_begun = True
        return arrived

    def compare(self, hasher: Hasher) -> list[Repair]:
        """Compare all digests, copy again what differs, and verify that once more."""
        found = self._repairs(hasher)
        if not found:
            return []
        self._copy_again(found, hasher)
        left = {repair.target: repair.name for repair in self._repairs(hasher)}
        wrong = "still differs after it was copied again: check the memory of"
        if self._rank in left:
            text = f"elastic: {left[self._rank]} {wrong} this machine"
            raise Expelled(text)
        for target, name in left.items():
            raise PeerFailed(target, f"{name} {wrong} {self._name(target)}")
        return found

    def _repairs(self, hasher: Hasher) -> list[Repair]:
        values = self._offered.values
        mine = hasher.digests(values) if self._takes_part else Digests({})
        gathered = self._exchange.gather(msgspec.msgpack.encode(mine))
        decoded = decode_all(gathered, digests.decode)
        sources, adopters = self._roles.sources, self._roles.adopters
        self.root = mine.root
        return find_repairs({r: decoded[r] for r in (*sources, *adopters)}, sources)

    def _copy_again(self, repairs: list[Repair], hasher: Hasher) -> None:
        entries = {entry.name: entry for entry in self._offered.tensors}
        pieces = self._pieces(hasher, None)
        for name, holder, target in repairs:
            if name == VALUES:
                self._send_values(holder, target)
            else:
                pieces.move(cut([entries[name]]), (holder,), (target,))

    def _pieces(self, hasher: Hasher, progress: Progress | None) -> PieceExchange:
        is_source = self._rank in self._roles.sources
        keeps = self.keeps or is_source
        return PieceExchange(self._group, self._views, hasher, progress, keeps=keeps)

    def _send_values(self, holder: int, target: int) -> None:
        """Give a member the plain values of another; all members call it."""
        values = self._exchange.broadcast(self._offered.values, holder)
        if self._rank == target:
            self._offered = msgspec.structs.replace(self._offered, values=values)
            self._has_new_values = True

    def finish(self, commit: Commit | None) -> None:
        """Put what was received into the training objects."""
        if self._lacks and commit is not None:
            reach("copy:whole")
            commit(self._offered.values)
        self._views.write_back()
        if self._lacks or self._has_new_values:
            self._state.adopt(self._offered, self._tensors)

    def _name(self, rank: int) -> str:
        return self._names[rank] if rank < len(self._names) else f"rank {rank}"


@contextmanager
def _long_timeout(group: Group, num_bytes: int) -> Iterator[None]:
    """Give operations of the group time for a copy of so many bytes."""
    usual = group.timeout_s
    group.timeout_s = max(usual, 2 * num_bytes / _SLOWEST)
    try:
        yield
    finally:
        group.timeout_s = usual
