"""ReplayState holds the nodes, lanes and moves of an event-driven replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ringleader.collectives.schedule import Kind
from ringleader.simulation.collectives.network_model import NetworkModel
from ringleader.simulation.collectives.program_shape import ProgramShape


@dataclass(slots=True, eq=False)
class TrunkState:
    """One direction of the trunk between two islands."""

    segment_s: float
    free_s: float = 0.0


@dataclass(slots=True, eq=False)
class ReplayNode:
    """One node; ``*_segment_s`` is the time of a segment, 0 where there is no limit."""

    number: int
    egress_segment_s: float
    ingress_segment_s: float
    reduce_segment_s: float
    egress_free_s: float = 0.0
    ingress_free_s: float = 0.0
    reduce_free_s: float = 0.0
    finish_s: float = 0.0
    waiting: deque[Lane] = field(default_factory=deque)
    arriving: deque[Lane] = field(default_factory=deque)
    summing: deque[ReplayMove] = field(default_factory=deque)
    is_egress_due: bool = False
    is_ingress_due: bool = False


@dataclass(slots=True, eq=False)
class Lane:
    """One ordered pair of nodes: what one sends, the other receives in order."""

    number: int
    source: ReplayNode
    to: ReplayNode
    latency_s: float
    segment_s: float
    """Time of a segment on the slower of link and sending NIC."""
    is_link_slow: bool
    """Whether the link is slower than the sending NIC."""
    trunk: TrunkState | None
    out_order: int = 0
    """Position among the lanes of ``source``, by first use in its program."""
    in_order: int = 0
    """Position among the lanes into ``to``, by first use in its program."""
    sends: list[ReplayMove] = field(default_factory=list)
    receives: list[ReplayMove] = field(default_factory=list)
    heads_s: deque[float] = field(default_factory=deque)
    """Arrival times of the segments that wait for the receiving NIC."""
    num_left: int = 0
    num_arrived: int = 0
    free_s: float = 0.0
    is_waiting: bool = False


@dataclass(slots=True, eq=False)
class ReplayMove:
    """A move being replayed; counts are in segments."""

    kind: Kind
    node: ReplayNode
    lane: Lane
    before: list[ReplayMove]
    """Moves on the same chunk that this one must wait for."""
    after: list[ReplayMove] = field(default_factory=list)
    arrived: int = 0
    taken: int = 0
    done: int = 0


class ReplayState:
    """Builds the nodes and lanes of a replay from the shapes of the programs.

    If one shape is given for many ranks, one node represents all of them: its lanes
    are identified by distance and lead back to itself.
    """

    def __init__(
        self, shapes: Sequence[ProgramShape], network: NetworkModel, segment: float
    ) -> None:
        self._network = network
        self._segment = segment
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._trunks: dict[tuple[int, int], TrunkState] = {}
        self.nodes = [self._node(rank) for rank in range(len(shapes))]
        for rank, shape in enumerate(shapes):
            self._add_program(rank, shape)

    @property
    def lanes(self) -> list[Lane]:
        """All lanes, ordered by number."""
        return list(self._lanes.values())

    def _node(self, rank: int) -> ReplayNode:
        node = self._network.nodes[rank]
        return ReplayNode(
            number=rank,
            egress_segment_s=self._segment / node.egress_bytes_per_s,
            ingress_segment_s=self._segment / node.ingress_bytes_per_s,
            reduce_segment_s=self._segment / node.reduce_bytes_per_s,
        )

    def _add_program(self, rank: int, shape: ProgramShape) -> None:
        """Add the moves of one rank to its lanes, chained chunk by chunk."""
        steps: list[ReplayMove] = []
        node = self.nodes[rank]
        moves = zip(shape.kinds, shape.distances, shape.befores, strict=True)
        for kind, distance, befores in moves:
            lane = self._lane(rank, kind, distance)
            step = ReplayMove(kind, node, lane, [steps[index] for index in befores])
            for before in step.before:
                before.after.append(step)
            steps.append(step)
            (lane.sends if kind is Kind.SEND else lane.receives).append(step)
        self._number(steps)

    def _number(self, steps: list[ReplayMove]) -> None:
        sending = {id(s.lane): s.lane for s in steps if s.kind is Kind.SEND}
        receiving = {id(s.lane): s.lane for s in steps if s.kind is not Kind.SEND}
        for order, lane in enumerate(sending.values()):
            lane.out_order = order
        for order, lane in enumerate(receiving.values()):
            lane.in_order = order

    def _lane(self, rank: int, kind: Kind, distance: int) -> Lane:
        size, count = self._network.size, len(self.nodes)
        source = rank if kind is Kind.SEND else (rank - distance) % size
        to = (source + distance) % size
        key = (source, to) if count == size else (0, distance)
        if key not in self._lanes:
            self._lanes[key] = self._new_lane(source, to)
        return self._lanes[key]

    def _new_lane(self, source: int, to: int) -> Lane:
        link = self._network.link_between(source, to)
        count = len(self.nodes)
        sender = self.nodes[source % count]
        link_s = self._segment / link.bytes_per_s
        return Lane(
            number=len(self._lanes),
            source=sender,
            to=self.nodes[to % count],
            latency_s=link.latency_s,
            segment_s=max(link_s, sender.egress_segment_s),
            is_link_slow=link_s > sender.egress_segment_s,
            trunk=self._trunk(source, to),
        )

    def _trunk(self, source: int, to: int) -> TrunkState | None:
        islands, trunk = self._network.crossed_islands(source, to), self._network.trunk
        if islands is None or trunk is None:
            return None
        if islands not in self._trunks:
            self._trunks[islands] = TrunkState(self._segment / trunk.bytes_per_s)
        return self._trunks[islands]
