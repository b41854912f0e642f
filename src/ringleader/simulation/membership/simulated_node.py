"""A node of the simulator: a key, its successive lives, its links, its clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.events import Action, Event
from ringleader.membership.member import Member, View, ViewId

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "jan")
"""What traces call the nodes; three letters of base32, as a node id has."""


class Subject(Protocol):
    """What is simulated: the ``Machine``, or another rule to compare it with."""

    me: Member
    wake_at_s: float

    @property
    def view(self) -> View | None:
        """The view in force at this node."""

    @property
    def is_frozen(self) -> bool:
        """Whether another view was promised."""

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Take in one event."""


Make = Callable[[Member], Subject]


def node_id(index: int) -> NodeId:
    """The key of the node with this index."""
    return NodeId(NAMES[index % len(NAMES)].ljust(52, "abcdefgh2"[index // len(NAMES)]))


class Node:
    """One host with one agent on it, which may end and start anew."""

    __slots__ = (
        "clock_rate",
        "clock_start_s",
        "copy_of",
        "frozen",
        "has_power",
        "inbox",
        "index",
        "installed",
        "is_paused",
        "key",
        "links",
        "num_lives",
        "num_payloads",
        "payload",
        "planned_s",
        "renewed_for",
        "subject",
    )

    def __init__(self, index: int, key: NodeId, *, copy_of: int = 0) -> None:
        self.index = index
        self.key = key
        self.copy_of = copy_of
        """One, if its key is that of another node; else zero."""
        self.num_lives = 0
        self.num_payloads = 0
        self.payload = b""
        self.clock_start_s = 0.0
        self.clock_rate = 1.0
        self.subject: Subject | None = None
        self.links: set[Member] = set()
        """Lives of peers to which this end believes to have a link."""
        self.is_paused = False
        self.has_power = True
        self.inbox: list[Event] = []
        self.planned_s: float | None = None
        self.installed: ViewId | None = None
        self.frozen: ViewId | None = None
        self.renewed_for: ViewId | None = None
        """The freeze in which it last found a new payload."""

    def begin(self, subject: Subject) -> None:
        """A new life."""
        self.num_lives += 1
        self.subject = subject
        self.has_power = True

    def end(self) -> None:
        """Forget everything a process that ends forgets."""
        self.subject = self.planned_s = None
        self.installed = self.frozen = self.renewed_for = None
        self.is_paused = False
        self.links = set()
        self.inbox = []

    @property
    def is_running(self) -> bool:
        """Whether it has a process and nobody stopped it."""
        return self.subject is not None and not self.is_paused

    @property
    def member(self) -> Member:
        """Its present life."""
        assert self.subject is not None
        return self.subject.me

    def clock(self, now_s: float) -> float:
        """What its own clock shows at ``now_s`` of the world."""
        return self.clock_start_s + now_s * self.clock_rate

    def when(self, clock_s: float) -> float:
        """The time of the world at which its clock shows ``clock_s``."""
        return (clock_s - self.clock_start_s) / self.clock_rate


def incarnation(node: Node) -> Incarnation:
    """A name for its next life; readable, since nobody guesses it here."""
    return Incarnation(f"{node.num_lives:04x}{node.copy_of:x}{node.index:011x}")
