"""The events that a rank records, and the trace of one rank.

Times are whole nanoseconds of one clock: that of the rank while it records, that of
rank 0 after ``on_one_clock``. Peers are ranks of the whole program.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective call, from its first byte to its last."""

    begin_ns: int
    end_ns: int
    group: str
    sequence: int
    """Number in the group: equal on all ranks that take part."""
    name: str
    algorithm: str
    codec: str
    num_bytes: int
    encode_ns: int
    """Time in the codec, encoding and decoding."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Time in which an operation could not go on until ``peer`` did something."""

    begin_ns: int
    end_ns: int
    group: str
    sequence: int
    peer: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """Time in which the script waited for communication."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Encode:
    """Time in which several operations and the compression between them ran."""

    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """One training step; the first one also contains what came before it."""

    begin_ns: int
    end_ns: int
    number: int


@dataclass(frozen=True, slots=True)
class Span:
    """Something else with a name, shown in the trace only."""

    begin_ns: int
    end_ns: int
    name: str


UNKNOWN_RANK = 1 << 20
"""A peer whose rank in the program is not known, as in views of an elastic run."""
Event = Operation | Wait | Blocked | Encode | Step | Span
Links = dict[tuple[int, int], float]
"""Bytes per second from one rank to another, as measured when the group was formed."""


@dataclass(slots=True)
class RankTrace:
    """Everything that is known of one rank."""

    rank: int
    machine: str = ""
    link_kind: str = ""
    """What connects the machine, such as "Wi-Fi"; empty if unknown."""
    operations: list[Operation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    encodes: list[Encode] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    num_dropped: int = 0
    """Events that the rank could not keep."""
    is_complete: bool = False
    """Whether the rank has sent everything: False if it died."""
    clock_error_ns: int = 0

    def add(self, event: Event) -> None:
        """Sort an event into its list."""
        lists: dict[type[Event], list[Event]] = {
            Operation: self.operations,  # type: ignore[dict-item]
            Wait: self.waits,  # type: ignore[dict-item]
            Blocked: self.blocked,  # type: ignore[dict-item]
            Encode: self.encodes,  # type: ignore[dict-item]
            Step: self.steps,  # type: ignore[dict-item]
            Span: self.spans,  # type: ignore[dict-item]
        }
        lists[type(event)].append(event)


@dataclass(slots=True)
class Recording:
    """The traces of all ranks, and the network between them."""

    ranks: dict[int, RankTrace] = field(default_factory=dict)
    links: Links = field(default_factory=dict)

    def machine(self, rank: int) -> str:
        """Return the name of a rank's machine; empty if it is unknown."""
        known = self.ranks.get(rank)
        return known.machine if known else ""
