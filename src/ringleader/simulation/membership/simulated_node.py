"""SimulatedNode: a key, the current incarnation of its agent, its links, its clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ringleader.ids import Incarnation, NodeId
from ringleader.membership.events import Action, Event
from ringleader.membership.member import Member, View, ViewId

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ivy", "jan")
"""Names of the nodes in traces: letters of base32, as node ids have them."""


class SimulatedMachine(Protocol):
    """Interface of what is simulated: ``MembershipMachine`` or a variant of it."""

    me: Member
    wake_at_s: float

    @property
    def view(self) -> View | None:
        """The view in force at this node."""

    @property
    def is_frozen(self) -> bool:
        """Whether the node has promised a newer view and stopped its work for it."""

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process one event and return the actions to perform."""


MachineFactory = Callable[[Member], SimulatedMachine]


def node_id(index: int) -> NodeId:
    """Return the id of the node with this index."""
    return NodeId(NAMES[index % len(NAMES)].ljust(52, "abcdefgh2"[index // len(NAMES)]))


class SimulatedNode:
    """One host with one agent on it, which may stop and start again."""

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
        "machine",
        "num_payloads",
        "num_starts",
        "payload",
        "planned_s",
        "renewed_for",
    )

    def __init__(self, index: int, key: NodeId, *, copy_of: int = 0) -> None:
        self.index = index
        self.key = key
        self.copy_of = copy_of
        """1 if its key is a copy of another node's key, else 0."""
        self.num_starts = 0
        self.num_payloads = 0
        self.payload = b""
        self.clock_start_s = 0.0
        self.clock_rate = 1.0
        self.machine: SimulatedMachine | None = None
        self.links: set[Member] = set()
        """Incarnations of peers to which this end believes to have a link."""
        self.is_paused = False
        self.has_power = True
        self.inbox: list[Event] = []
        self.planned_s: float | None = None
        self.installed: ViewId | None = None
        self.frozen: ViewId | None = None
        self.renewed_for: ViewId | None = None
        """The proposed view for which it last set a new payload."""

    def begin(self, machine: SimulatedMachine) -> None:
        """Start a new incarnation."""
        self.num_starts += 1
        self.machine = machine
        self.has_power = True

    def end(self) -> None:
        """Stop the agent and drop the state that a process loses when it ends."""
        self.machine = self.planned_s = None
        self.installed = self.frozen = self.renewed_for = None
        self.is_paused = False
        self.links = set()
        self.inbox = []

    @property
    def is_running(self) -> bool:
        """Whether the agent runs and is not paused."""
        return self.machine is not None and not self.is_paused

    @property
    def member(self) -> Member:
        """The current incarnation."""
        assert self.machine is not None
        return self.machine.me

    def clock(self, now_s: float) -> float:
        """Reading of the node's own clock at virtual time ``now_s``."""
        return self.clock_start_s + now_s * self.clock_rate

    def when(self, clock_s: float) -> float:
        """Virtual time at which the node's own clock shows ``clock_s``."""
        return (clock_s - self.clock_start_s) / self.clock_rate


def incarnation(node: SimulatedNode) -> Incarnation:
    """Id of the next incarnation; readable, since nothing here must be unguessable."""
    return Incarnation(f"{node.num_starts:04x}{node.copy_of:x}{node.index:011x}")
