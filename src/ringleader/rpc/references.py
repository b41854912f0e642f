"""Distributed reference counting: which references this process holds, lends and owns.

The owner of a value counts, for each rank, how often that rank has said Add and not yet
Drop. It discards the value when nobody holds it. A rank says Add for the first RRef
that it gets of a value, and Drop when its last one is gone.

A reference that travels in a message is *lent*: the sender keeps holding it until the
receiver confirms the loan, which it does only after the owner has answered its Add. So
a Drop of the sender cannot reach the owner before the Add of the receiver. A rank
whose connection is lost holds nothing any more.

The creator of a reference may pass it on before the owner has heard of it. The owner
then waits for the call that makes the value. Creators number their references for each
owner, so the owner can tell those that are still to come from those that are gone.

Messages are posted under the lock: they leave in the order of the decisions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ringleader.errors import ProtocolError
from ringleader.rpc.messages import (
    Add,
    Added,
    Confirm,
    Drop,
    Failure,
    Message,
    Reference,
)
from ringleader.rpc.owned_value import Numbers, OwnedValue

Post = Callable[[int, Message], None]
"""Sends a small message to a rank, in order; never raises, never blocks."""


@dataclass(slots=True, eq=False)
class _Held:
    """A reference to a value of another rank."""

    count: int = 0
    is_added: bool = False
    """Whether the owner has answered."""
    loans: list[tuple[int, int]] = field(default_factory=list)
    """(lender, loan) that this answer is awaited for."""


class References:
    """The reference counts of one process. Any thread may call the methods."""

    def __init__(self, rank: int, post: Post) -> None:
        self._rank = rank
        self._post = post
        self._lock = threading.Lock()
        self._owned: dict[Reference, OwnedValue] = {}
        self._created: dict[tuple[int, int], Numbers] = {}
        """(creator, nonce) -> the numbers of its references to values of this rank."""
        self._held: dict[Reference, _Held] = {}
        self._lent: dict[tuple[int, int], tuple[Reference, ...]] = {}
        self._open: dict[tuple[int, int], int] = {}
        """(lender, loan) -> references whose owners have not answered."""
        self._next_loan = 1
        self._lost: set[int] = set()

    # -- values of this process ----------------------------------------------------

    def create(self, reference: Reference, holder: int) -> OwnedValue:
        """Keep a new value for ``holder``; ValueError if it is not new."""
        with self._lock:
            if self._was_created(reference):
                raise ValueError(f"{reference} is not new")
            key = reference.creator, reference.nonce
            self._created.setdefault(key, Numbers()).add(reference.number)
            owned = self._owned.setdefault(reference, OwnedValue())
            owned.is_created = True
            owned.holders[holder] = owned.holders.get(holder, 0) + 1
            return owned

    def _was_created(self, reference: Reference) -> bool:
        key = reference.creator, reference.nonce
        return reference.number in self._created.get(key, ())

    def resolve(
        self, owned: OwnedValue, value: object, failure: Failure | None = None
    ) -> None:
        """Set the value, or why there is none, and call those who wait for it."""
        with self._lock:
            owned.value, owned.failure, owned.is_ready = value, failure, True
            waiting, owned.waiting = owned.waiting, []
        for each in waiting:
            each()

    def find(self, reference: Reference) -> OwnedValue | None:
        """Return the value that this process keeps or will keep; None if it is gone."""
        with self._lock:
            return self._find(reference)

    def _find(self, reference: Reference) -> OwnedValue | None:
        is_to_come = reference.creator not in (self._rank, *self._lost)
        if is_to_come and not self._was_created(reference):
            return self._owned.setdefault(reference, OwnedValue())
        return self._owned.get(reference)

    def when_ready(self, owned: OwnedValue, call: Callable[[], None]) -> None:
        """Call ``call`` once the value is there; at once if it is."""
        with self._lock:
            if not owned.is_ready:
                owned.waiting.append(call)
                return
        call()

    # -- the uses of this process --------------------------------------------------

    def hold_new(self, reference: Reference) -> None:
        """Count the first use of a value that another rank is about to make.

        The message that asks for the value lends the reference, too, and the owner
        confirms when it has counted this rank: no Drop can come before that.
        """
        with self._lock:
            self._held[reference] = _Held(1, is_added=True)

    def release(self, reference: Reference) -> None:
        """Count one use less. With the last one the owner is told."""
        with self._lock:
            gone = self._release(reference)
        del gone  # not under the lock: it may run code of the user

    def _release(self, reference: Reference) -> OwnedValue | None:
        if reference.owner == self._rank:
            return self._drop(reference, self._rank)
        held = self._held.get(reference)
        if held is not None:
            held.count -= 1
            self._drop_unused(reference, held)
        return None

    def _drop_unused(self, reference: Reference, held: _Held) -> None:
        """Tell the owner after the last use, but not before it has answered our Add.

        So there is never more than one Add of a reference that waits for its answer.
        """
        if not held.count and held.is_added:
            del self._held[reference]
            self._post(reference.owner, Drop(reference))

    # -- messages with references --------------------------------------------------

    def lend(self, references: Sequence[Reference], to: int) -> int:
        """Hold references for rank ``to``; return the number of the loan.

        A lost rank is lent nothing: nobody would give it back.
        """
        with self._lock:
            loan, self._next_loan = self._next_loan, self._next_loan + 1
            if to in self._lost:
                return loan
            self._lent[to, loan] = tuple(references)
            for reference in references:
                self._use_again(reference)
            return loan

    def _use_again(self, reference: Reference) -> None:
        if held := self._held.get(reference):
            held.count += 1
        elif owned := self._owned.get(reference):
            owned.holders[self._rank] = owned.holders.get(self._rank, 0) + 1

    def return_loan(self, to: int, loan: int) -> None:
        """End a loan: the receiver has confirmed it, or it was never sent."""
        with self._lock:
            gone = [self._release(r) for r in self._lent.pop((to, loan), ())]
        del gone

    def borrow(self, references: Sequence[Reference], lender: int, loan: int) -> None:
        """Count one use of each reference in a message, and confirm the loan later."""
        with self._lock:
            if (lender, loan) in self._open:
                raise ProtocolError(lender, f"RPC: lends twice under number {loan}")
            self._open[lender, loan] = 1
            for reference in references:
                if reference.owner == self._rank:
                    self._use_again(reference)
                    continue
                held = self._held.get(reference)
                if held is None:
                    held = self._held[reference] = _Held()
                    held.is_added = reference.owner in self._lost
                    self._post(reference.owner, Add(reference))
                held.count += 1
                if not held.is_added:
                    held.loans.append((lender, loan))
                    self._open[lender, loan] += 1
            self._close_loan((lender, loan))

    def _close_loan(self, key: tuple[int, int]) -> None:
        """Count one answer; confirm the loan with the last one."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]
            self._post(key[0], Confirm(key[1]))

    # -- messages of others about references ---------------------------------------

    def receive(self, peer: int, message: Add | Added | Drop | Confirm) -> None:
        """Act on a message of another rank; ProtocolError if it cannot send that."""
        if not isinstance(message, Confirm):
            owner = peer if isinstance(message, Added) else self._rank
            if message.reference.owner != owner:
                raise ProtocolError(peer, f"RPC: sends {message}"[:200])
        match message:
            case Add(reference):
                self.on_add(reference, peer)
            case Added(reference):
                self.on_added(reference)
            case Drop(reference):
                self.on_drop(reference, peer)
            case Confirm(loan):
                self.return_loan(peer, loan)

    def on_add(self, reference: Reference, peer: int) -> None:
        """Count a use of ``peer``, and answer."""
        with self._lock:
            if owned := self._find(reference):
                owned.holders[peer] = owned.holders.get(peer, 0) + 1
            self._post(peer, Added(reference))

    def on_added(self, reference: Reference) -> None:
        """Confirm the loans that waited for this answer of the owner."""
        with self._lock:
            held = self._held.get(reference)
            if held is not None:
                self._answer(reference, held)

    def _answer(self, reference: Reference, held: _Held) -> None:
        held.is_added = True
        loans, held.loans = held.loans, []
        for loan in loans:
            self._close_loan(loan)
        self._drop_unused(reference, held)

    def on_drop(self, reference: Reference, peer: int) -> None:
        """Count a use of ``peer`` less; discard the value with the last one."""
        with self._lock:
            gone = self._drop(reference, peer)
        del gone

    def _drop(self, reference: Reference, holder: int) -> OwnedValue | None:
        owned = self._owned.get(reference)
        if owned is None or holder not in owned.holders:
            return None
        owned.holders[holder] -= 1
        if not owned.holders[holder]:
            del owned.holders[holder]
        return None if owned.is_in_use() else self._owned.pop(reference)

    def forget_rank(self, peer: int) -> None:
        """Drop everything that a lost rank holds, was lent or has not answered."""
        gone: list[OwnedValue | None] = []
        orphans: list[OwnedValue] = []
        with self._lock:
            self._lost.add(peer)
            for reference, owned in list(self._owned.items()):
                if reference.creator == peer and not owned.is_created:
                    orphans.append(owned)
                if owned.holders.pop(peer, 0) and not owned.is_in_use():
                    gone.append(self._owned.pop(reference))
            for key in [k for k in self._lent if k[0] == peer]:
                gone += [self._release(r) for r in self._lent.pop(key)]
            for reference, held in list(self._held.items()):
                if reference.owner == peer:
                    self._answer(reference, held)
        for owned in orphans:
            text = f"rank {peer} was lost before it asked for the value"
            self.resolve(owned, None, Failure(0, text))

    def num_owned(self) -> int:
        """Return how many values this process keeps."""
        return len(self._owned)

    def num_lent(self) -> int:
        """Return how many loans have not been confirmed."""
        return len(self._lent)

    def clear(self) -> None:
        """Discard all values, at the end; whoever waits for one is woken."""
        with self._lock:
            gone = list(self._owned.values())
            self._owned.clear()
            self._lent.clear()
            self._held.clear()
        for owned in gone:
            if owned.waiting:
                self.resolve(owned, None, Failure(0, "RPC has ended"))
