"""Reference counting between simulated ranks, in all orders that links allow."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from ringleader.errors import ProtocolError
from ringleader.rpc.messages import Add, Added, Drop, Message, Reference
from ringleader.rpc.owned_value import Numbers
from ringleader.rpc.references import Post, References

SIZE = 4
STEPS = 300


@dataclass
class Letter:
    """A message of the user that carries references."""

    references: list[Reference]
    loan: int
    new: Reference | None = None
    """Asks the receiver for a value with this name."""


@dataclass
class World:
    """Ranks whose messages wait in queues until the simulation delivers them.

    Control messages keep their order per pair of ranks. Letters travel on another link
    and overtake them.
    """

    rng: random.Random
    ranks: list[References] = field(default_factory=list)
    control: dict[tuple[int, int], deque[Message]] = field(default_factory=dict)
    letters: dict[tuple[int, int], deque[Letter]] = field(default_factory=dict)
    uses: list[list[Reference]] = field(default_factory=list)
    """The RRefs that each rank's program has."""
    alive: set[int] = field(default_factory=lambda: set(range(SIZE)))
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    created: set[Reference] = field(default_factory=set)
    """References whose owner has heard of them."""

    def __post_init__(self) -> None:
        for rank in range(SIZE):
            self.ranks.append(References(rank, self.poster(rank)))
            self.uses.append([])

    def poster(self, rank: int) -> Post:
        def post(to: int, message: Message) -> None:
            if to in self.alive and rank in self.alive:
                self.control.setdefault((rank, to), deque()).append(message)

        return post

    def reference(self, owner: int, creator: int) -> Reference:
        key = owner, creator
        self.numbers[key] = self.numbers.get(key, 0) + 1
        return Reference(owner, creator, 0, self.numbers[key])

    # -- what programs do ----------------------------------------------------------

    def create(self, rank: int) -> None:
        reference = self.reference(rank, rank)
        self.keep(reference)
        self.uses[rank].append(reference)

    def keep(self, reference: Reference) -> None:
        owner = self.ranks[reference.owner]
        owner.resolve(owner.create(reference, reference.creator), "value")
        self.created.add(reference)

    def ask(self, rank: int) -> None:
        """``remote()``: the owner learns of the reference from a letter."""
        owner = self.rng.choice(sorted(self.alive - {rank}))
        reference = self.reference(owner, rank)
        self.ranks[rank].hold_new(reference)
        self.uses[rank].append(reference)
        loan = self.ranks[rank].lend([reference], owner)
        letter = Letter([], loan, reference)
        self.letters.setdefault((rank, owner), deque()).append(letter)

    def pass_on(self, rank: int) -> None:
        if not self.uses[rank]:
            return
        to = self.rng.choice(sorted(self.alive))
        some = self.rng.choices(self.uses[rank], k=self.rng.randint(1, 3))
        loan = self.ranks[rank].lend(some, to)
        self.letters.setdefault((rank, to), deque()).append(Letter(some, loan))

    def drop(self, rank: int) -> None:
        if self.uses[rank]:
            at = self.rng.randrange(len(self.uses[rank]))
            self.ranks[rank].release(self.uses[rank].pop(at))

    # -- what links do -------------------------------------------------------------

    def deliver(self) -> bool:
        queues = [(k, q, True) for k, q in self.control.items() if q]
        queues += [(k, q, False) for k, q in self.letters.items() if q]  # type: ignore[misc]
        if not queues:
            return False
        (source, to), queue, is_control = self.rng.choice(queues)
        item = queue.popleft()
        if is_control:
            self.ranks[to].receive(source, item)  # type: ignore[arg-type]
        else:
            self.open(source, to, item)  # type: ignore[arg-type]
        return True

    def open(self, source: int, to: int, letter: Letter) -> None:
        if letter.new is not None:
            self.keep(letter.new)
        self.ranks[to].borrow(letter.references, source, letter.loan)
        self.uses[to] += letter.references

    def kill(self, rank: int) -> None:
        self.alive.discard(rank)
        self.uses[rank].clear()
        for queues in (self.control, self.letters):
            for key in [k for k in queues if rank in k]:
                queues.pop(key)
        for other in self.alive:
            self.ranks[other].forget_rank(rank)

    def check(self) -> None:
        """Every RRef of a program has a value once its owner has heard of it."""
        for rank in self.alive:
            for reference in set(self.uses[rank]) & self.created:
                found = self.ranks[reference.owner].find(reference)
                assert found is not None
                assert found.value == "value"


@pytest.mark.parametrize("seed", range(6))
def test_a_value_lives_exactly_as_long_as_a_reference_to_it(seed: int) -> None:
    """Also while its only references are on their way in messages."""
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(STEPS):
        rank = rng.randrange(SIZE)
        rng.choice([world.create, world.ask, world.pass_on, world.drop])(rank)
        for _ in range(rng.randrange(3)):
            world.deliver()
        world.check()
    while world.deliver():
        world.check()
    for rank in range(SIZE):
        while world.uses[rank]:
            world.drop(rank)
    while world.deliver():
        pass
    assert [r.num_owned() for r in world.ranks] == [0] * SIZE
    assert [r.num_lent() for r in world.ranks] == [0] * SIZE
    assert [len(r._held) + len(r._open) for r in world.ranks] == [0] * SIZE


@pytest.mark.parametrize("seed", range(6))
def test_a_dead_rank_holds_nothing(seed: int) -> None:
    """Its references, those lent to it and its unconfirmed loans are dropped."""
    rng = random.Random(1000 + seed)
    world = World(rng)
    for step in range(STEPS):
        if step == STEPS // 2:
            world.kill(rng.randrange(SIZE))
        rank = rng.choice(sorted(world.alive))
        rng.choice([world.create, world.ask, world.pass_on, world.drop])(rank)
        world.deliver()
    while world.deliver():
        pass
    for rank in world.alive:
        while world.uses[rank]:
            world.drop(rank)
    while world.deliver():
        pass
    for rank in world.alive:
        assert world.ranks[rank].num_owned() == 0
        assert world.ranks[rank].num_lent() == 0
        assert not world.ranks[rank]._held


def test_numbers_are_remembered_without_a_list_of_all() -> None:
    numbers = Numbers()
    for number in [2, 1, 5, 3]:
        assert number not in numbers
        numbers.add(number)
    assert [n in numbers for n in range(1, 7)] == [True, True, True, False, True, False]
    assert numbers._beyond == {5}


def test_the_creator_may_pass_a_reference_on_before_the_owner_knows_it() -> None:
    """Rank 1 asks rank 0 for a value, and rank 2 hears of it before rank 0 does."""
    sent: list[tuple[int, Message]] = []
    owner = References(0, lambda to, message: sent.append((to, message)))
    reference = Reference(0, 1, 7, 1)
    owner.on_add(reference, 2)
    assert sent == [(2, Added(reference))]
    found = owner.find(reference)
    assert found is not None
    assert owner.create(reference, 1) is found
    owner.on_drop(reference, 1)
    assert owner.find(reference) is found, "rank 2 holds it"
    owner.on_drop(reference, 2)
    assert owner.find(reference) is None
    with pytest.raises(ValueError, match="not new"):
        owner.create(reference, 1)
    later = Reference(0, 1, 7, 2)
    told: list[str] = []
    awaited = owner.find(later)
    assert awaited is not None
    owner.when_ready(awaited, lambda: told.append("ready"))
    owner.forget_rank(1)
    assert told == ["ready"]
    assert awaited.failure is not None
    assert "rank 1 was lost" in awaited.failure.text


def test_a_rank_cannot_confuse_the_counts_of_another() -> None:
    """Messages that only another rank may send, and a number that is used twice."""
    mine = References(0, lambda to, message: None)
    other = Reference(2, 2, 7, 1)
    for message in (Add(other), Drop(other), Added(Reference(0, 0, 7, 1))):
        with pytest.raises(ProtocolError, match="rank 1: RPC: sends"):
            mine.receive(1, message)
    mine.borrow([other], 1, 5)
    with pytest.raises(ProtocolError, match="rank 1: RPC: sends Added"):
        mine.receive(1, Added(other))
    with pytest.raises(ProtocolError, match="rank 1: RPC: lends twice under number 5"):
        mine.borrow([other], 1, 5)
    mine.receive(2, Added(other))
    mine.borrow([other], 1, 5)
