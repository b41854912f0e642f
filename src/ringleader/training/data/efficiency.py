"""How much of the machines' summed speed a plan uses, and what would raise it.

    efficiency = whole quanta * noise * compute / (compute + exposed communication)

Of the summed stand-alone throughput, some is lost because quanta are whole, some
because a step waits for the slowest machine of the moment, and some to communication
that no computing hides. Pure functions of replicated values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ringleader.collectives.cost_model import Network, predict_s, profile
from ringleader.ids import NodeId, short
from ringleader.training.data.assignment import Quotas, quotas
from ringleader.training.data.balance import Balance, step_s
from ringleader.training.data.data_state import DataSpec

GOAL: Final = 0.9
INT8_SHARE: Final = 0.26
"""Bytes of an int8 gradient beside float32, scales included."""
MIN_RING_GAIN: Final = 0.05
"""Gain below which the ring stays as it is, because a change costs a view change."""
MAX_LARGER: Final = 8
"""Largest factor for a suggested global batch: a larger batch would train otherwise."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan is expected to reach."""

    compute_s: float
    reduce_s: float
    """Communication that no computing hides."""
    whole_quanta: float
    noise: float

    @property
    def efficiency(self) -> float:
        """Share of the summed stand-alone throughput."""
        compute = self.compute_s / ((self.compute_s + self.reduce_s) or 1.0)
        return self.whole_quanta * self.noise * compute


def predict(
    counts: Quotas, quantum_s: Mapping[NodeId, float], reduce_s: float, noise: float
) -> Prediction:
    """Predict a step with the quotas ``counts``.

    ``noise`` is the relative deviation of quantum times: a step waits for the latest.
    """
    speeds = [1 / quantum_s[node] for node in counts if node in quantum_s]
    compute_s = step_s(counts, quantum_s)
    ideal_s = sum(counts.values()) / sum(speeds) if speeds else compute_s
    whole = ideal_s / compute_s if compute_s else 1.0
    return Prediction(compute_s, reduce_s, whole, max(0.0, 1 - noise))


def ways_to_goal(
    spec: DataSpec, balance: Balance, members: Sequence[NodeId], reduce_s: float
) -> Iterator[str]:
    """Yield what would reach 90 %, the smallest change first."""

    def reaches(finer: int, larger: int, share: float) -> bool:
        times = {m: t / finer for m, t in balance.quantum_s.items()}
        count = spec.num_quanta * finer * larger
        counts = quotas(count, members, times, balance.spares)
        found = predict(counts, times, reduce_s * share, balance.noise)
        return found.efficiency >= GOAL

    finer = [n for n in (2, 4, 8) if n <= spec.micro_batch and reaches(n, 1, 1.0)]
    yield from (f"micro_batch={spec.micro_batch // n}" for n in finer[:1])
    factors = range(1, MAX_LARGER + 1)
    coded = next((n for n in factors if reaches(1, n, INT8_SHARE)), MAX_LARGER + 1)
    plain = next((n for n in factors if reaches(1, n, 1.0)), MAX_LARGER + 1)
    if coded == 1:
        yield 'codec="int8"'
    elif coded < plain:
        yield f'global_batch={spec.global_batch * coded} with codec="int8"'
    if plain <= MAX_LARGER:
        yield f"global_batch={spec.global_batch * plain}"
    yield from _rounds(spec, balance, members, reduce_s)


def _rounds(
    spec: DataSpec, balance: Balance, members: Sequence[NodeId], reduce_s: float
) -> Iterator[str]:
    """Yield how many local steps hide the communication, in steps of ten."""
    counts = quotas(spec.num_quanta, members, balance.quantum_s, balance.spares)
    once = predict(counts, balance.quantum_s, reduce_s, balance.noise)
    # Within a round the quanta of all local steps are divided together.
    many = replace(once, whole_quanta=1.0)
    for steps in range(10, 501, 10):
        if replace(many, reduce_s=reduce_s / steps).efficiency >= GOAL:
            yield f'low_comm="diloco:{steps}"'
            return


def slow_links(
    spec: DataSpec,
    balance: Balance,
    members: Sequence[NodeId],
    reduce_s: Callable[[Sequence[NodeId]], float],
    resting: Sequence[NodeId] = (),
) -> tuple[NodeId, ...]:
    """Return members whose link costs the step more than their computing helps.

    ``reduce_s`` predicts the communication among some members. ``resting`` are those
    without work now. A member comes or goes only if that gains at least 5 %.
    """

    def predicted_s(ring: Sequence[NodeId]) -> float:
        counts = quotas(spec.num_quanta, ring, balance.quantum_s, balance.spares)
        return step_s(counts, balance.quantum_s) + reduce_s(ring)

    ring = [m for m in members if m not in resting]
    now_s = predicted_s(ring) if ring else float("inf")
    while True:
        others = [_toggled(members, ring, m) for m in members]
        best = min((o for o in others if o), key=predicted_s, default=ring)
        best_s = predicted_s(best)
        if best_s > now_s * (1 - MIN_RING_GAIN):
            return tuple(m for m in members if m not in ring)
        ring, now_s = best, best_s


def _toggled(
    members: Sequence[NodeId], ring: Sequence[NodeId], node: NodeId
) -> list[NodeId]:
    """Return the ring with ``node`` added or taken out."""
    return [m for m in members if (m in ring) != (m == node)]


def ring_s(
    network: Network, members: Sequence[NodeId], num_bytes: int
) -> Callable[[Sequence[NodeId]], float]:
    """Return a function that predicts an all_reduce among some of ``members``.

    ``network`` is that of the group of all members, rank by rank.
    """

    def reduce_s(ring: Sequence[NodeId]) -> float:
        if len(ring) < 2:
            return 0.0
        part = network.part([members.index(m) for m in ring])
        shape = profile("all_reduce", "ring", len(ring), 0, 2)
        return predict_s(shape, num_bytes, part)

    return reduce_s


def plan_text(
    spec: DataSpec,
    balance: Balance,
    members: Sequence[NodeId],
    reduce_s: float,
    names: Mapping[NodeId, str],
) -> str:
    """Return the plan in one line: who gets what, why, and what it will reach."""
    counts = balance.quotas_for(spec.num_quanta, members)
    shares = ", ".join(f"{names.get(m, short(m))} {n}" for m, n in counts.items())
    text = f"{spec.num_quanta} quanta of {spec.micro_batch}: {shares}"
    if balance.reason:
        text += f" ({balance.reason})"
    quantum_s = balance.quantum_s
    if not any(m in quantum_s for m in members):
        return text
    found = predict(counts, quantum_s, reduce_s, balance.noise)
    text += (
        f"; {found.compute_s:.3g} s computing and {found.reduce_s:.2g} s waiting for "
        f"the network a step, {found.efficiency:.0%} of the summed speed"
    )
    if found.efficiency >= GOAL:
        return text
    ways = list(ways_to_goal(spec, balance, members, reduce_s))
    if not ways:
        return f"{text}; the machines are too unlike or too busy for {GOAL:.0%}"
    return f"{text}; {GOAL:.0%} with {' or '.join(ways[:3])}"
