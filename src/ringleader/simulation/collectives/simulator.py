"""Predicts how long a collective takes on N nodes, by replaying it in virtual time.

``simulate`` takes the same programs that the engine runs and a ``NetworkModel``. Three
methods give the same result, which ``tests/unit/simulation/test_simulator.py`` checks:

* event by event (``event_replay.py``), for every schedule and every network;
* one node that represents all, if every rank has the same program up to rotation and
  the network is uniform: all ranks then have the same timeline, and what a rank
  receives from distance d on its left is what it sends to distance d on its right;
* a recurrence on arrays (``ring_recurrence.py``), for rings on any network.

With the last two a ring of a thousand nodes (two million messages) takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringleader.collectives.algorithm import program
from ringleader.collectives.schedule import Kind, Program
from ringleader.errors import ConfigError
from ringleader.simulation.collectives import ring_recurrence
from ringleader.simulation.collectives.event_replay import Replay
from ringleader.simulation.collectives.network_model import NetworkModel
from ringleader.simulation.collectives.program_shape import (
    ProgramShape,
    common_shape,
    shape_of,
)
from ringleader.simulation.collectives.replay_state import ReplayState

SEGMENT_BYTES = 64 * 1024
"""The engine reduces and forwards every 64 KiB; smaller segments only cost time."""

MAX_SEGMENTS = 120_000
"""About two seconds of replay. Beyond it segments grow; if that is not enough,
ConfigError is raised."""

MAX_ALL_TO_ALL_NODES = 64
"""Limit for all-to-all algorithms, in which n*(n-1) streams share n NICs."""

MESH = frozenset({"direct", "exchange"})
"""Algorithms in which every rank sends to every other."""

WHOLE = frozenset({"all_reduce", "reduce", "broadcast"})
"""Operations whose algorithm decides into how many chunks the tensor is split."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Result of a simulation."""

    time_s: float
    """Time at which the last rank is done."""

    per_rank_finish_s: tuple[float, ...]
    bytes_sent: tuple[int, ...]
    """Payload bytes sent by each rank."""


def simulate(
    programs: Sequence[Program],
    chunk_bytes: int,
    network: NetworkModel,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    is_shortcut_allowed: bool = True,
) -> Prediction:
    """Simulate ``programs`` with chunks of ``chunk_bytes``.

    ``is_shortcut_allowed=False`` forces the event-driven method.
    """
    if len(programs) != network.size:
        raise ConfigError(
            f"simulate: {len(programs)} programs for a network of {network.size} nodes"
        )
    shape = common_shape(programs) if is_shortcut_allowed else None
    if shape is not None:
        result = _shortcut(shape, chunk_bytes, network, segment_bytes=segment_bytes)
        if result is not None:
            return result
    segments = _num_segments(programs, chunk_bytes, segment_bytes)
    shapes = [shape_of(p, rank, network.size) for rank, p in enumerate(programs)]
    finish_s = _replay(shapes, network, chunk_bytes, segments)
    return _result(finish_s, tuple(chunk_bytes * _num_sends(p) for p in programs))


def predict(
    operation: str,
    algorithm: str,
    num_bytes: int,
    network: NetworkModel,
    *,
    root: int = 0,
    arity: int = 2,
) -> Prediction:
    """Predict the time of a collective on tensors of ``num_bytes``.

    ``num_bytes`` is the larger side: the output of an all_gather or gather, the input
    of a reduce_scatter or scatter. Raises ConfigError if the simulation would take too
    long; ``skip_reason`` tells in advance for algorithms of many streams.
    """
    size = network.size

    def build(rank: int) -> Program:
        return program(operation, algorithm, rank, size, root=root, arity=arity)

    # Above 64 ranks a sample represents all: the builders are one formula in the rank.
    sample = range(size) if size <= 64 else (0, 1, size // 2, size - 1)
    some = [build(rank) for rank in sample]
    shape = common_shape(some, ranks=sample, size=size)
    if shape is not None:
        chunk_bytes = -(-num_bytes // _num_chunks(operation, some[:1], size))
        result = _shortcut(shape, chunk_bytes, network, segment_bytes=SEGMENT_BYTES)
        if result is not None:
            return result
    programs = _build_all(build, size, f"{operation} by {algorithm}")
    chunk_bytes = -(-num_bytes // _num_chunks(operation, programs, size))
    return simulate(programs, chunk_bytes, network, is_shortcut_allowed=False)


def skip_reason(algorithm: str, size: int) -> str | None:
    """Return why an algorithm is not simulated at this size, or None if it is."""
    if algorithm in MESH and size > MAX_ALL_TO_ALL_NODES:
        return (
            f"{algorithm} opens {size * (size - 1):,} streams at {size} nodes; "
            f"it is simulated for at most {MAX_ALL_TO_ALL_NODES} nodes"
        )
    return None


def _build_all(build: Callable[[int], Program], size: int, what: str) -> list[Program]:
    """Build all programs; raises ConfigError as soon as they have too many moves."""
    programs: list[Program] = []
    num_moves = 0
    for rank in range(size):
        programs.append(build(rank))
        num_moves += len(programs[-1])
        if num_moves > 2 * MAX_SEGMENTS:
            raise ConfigError(
                f"{what} on this network at {size} nodes has more than "
                f"{MAX_SEGMENTS:,} messages, the limit of the simulator"
            )
    return programs


def _num_chunks(operation: str, programs: Sequence[Program], size: int) -> int:
    if operation not in WHOLE:
        return size
    return 1 + max((m.chunk for p in programs for m in p), default=0)


def _num_sends(moves: Program) -> int:
    return sum(m.kind is Kind.SEND for m in moves)


def _num_segments(
    programs: Sequence[Program], chunk_bytes: int, segment_bytes: int
) -> int:
    messages = max(1, sum(_num_sends(p) for p in programs))
    wanted = -(-chunk_bytes // segment_bytes)
    return max(1, min(wanted, MAX_SEGMENTS // messages))


def _shortcut(
    shape: ProgramShape, chunk_bytes: int, network: NetworkModel, *, segment_bytes: int
) -> Prediction | None:
    """Return what the replay of all ranks would, faster; None if no method applies."""
    num_sends = sum(kind is Kind.SEND for kind in shape.kinds)
    sent = (num_sends * chunk_bytes,) * network.size
    wanted = max(1, -(-chunk_bytes // segment_bytes))
    if network.is_uniform:
        segments = max(1, min(wanted, MAX_SEGMENTS // max(1, num_sends)))
        [one_s] = _replay([shape], network, chunk_bytes, segments)
        return _result([one_s] * network.size, sent)
    if not ring_recurrence.is_ring(shape, network):
        return None
    limit = ring_recurrence.MAX_CELLS // max(1, num_sends * network.size)
    segments = max(1, min(wanted, limit))
    finish_s = ring_recurrence.finish_times(shape, network, chunk_bytes, segments)
    return _result(finish_s, sent)


def _replay(
    shapes: Sequence[ProgramShape],
    network: NetworkModel,
    chunk_bytes: int,
    segments: int,
) -> list[float]:
    """Return the time at which each node is done, by event-driven replay."""
    state = ReplayState(shapes, network, chunk_bytes / segments)
    Replay(state.lanes, segments).run()
    return [node.finish_s for node in state.nodes]


def _result(finish_s: Sequence[float], sent: tuple[int, ...]) -> Prediction:
    return Prediction(max(finish_s), tuple(finish_s), sent)
