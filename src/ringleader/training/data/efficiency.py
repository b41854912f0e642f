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

from ringleader.collectives.cost_model import Network, predict_s
from ringleader.collectives.schedule_profile import profile
from ringleader.ids import NodeId, short
from ringleader.training.data.assignment import Quotas, quotas
from ringleader.training.data.balance import Balance, step_s
from ringleader.training.data.data_state import DataSpec

GOAL: Final = 0.9
INT8_SHARE: Final = 0.26
"""Bytes of an int8 gradient beside float32, scales included."""
CODEC_SHARES: Final = {"fp16": 0.5, "bf16": 0.5, "sparseloco": 0.02}
"""Bytes of a gradient beside float32 by codec; the others are taken to be int8."""
MIN_RING_GAIN: Final = 0.05
"""What a step must gain without a machine: noise is less."""
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
) -> tuple[NodeId, ...]:
    """Return members without whom a step would be at least 5 % shorter.

    Their link costs the others more than their computing helps. ``reduce_s`` predicts
    the communication among some members.
    """

    def predicted_s(ring: Sequence[NodeId]) -> float:
        counts = quotas(spec.num_quanta, ring, balance.quantum_s, balance.spares)
        return step_s(counts, balance.quantum_s) + reduce_s(ring)

    ring = list(members)
    now_s = predicted_s(ring)
    while len(ring) > 1:
        smaller = [[m for m in ring if m != without] for without in ring]
        best = min(smaller, key=predicted_s)
        best_s = predicted_s(best)
        if best_s > now_s * (1 - MIN_RING_GAIN):
            break
        ring, now_s = best, best_s
    return tuple(m for m in members if m not in ring)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a step sends."""

    num_bytes: int
    """Length of the gradient."""
    codec: str | None = None
    is_rounds: bool = False

    def reduce_s(
        self, network: Network, members: Sequence[NodeId]
    ) -> Callable[[Sequence[NodeId]], float]:
        """Return a function that predicts an all_reduce among some of ``members``.

        ``network`` is that of the group of all members, rank by rank.
        """
        share = 1.0 if self.codec is None else CODEC_SHARES.get(self.codec, INT8_SHARE)

        def predicted_s(ring: Sequence[NodeId]) -> float:
            if len(ring) < 2:
                return 0.0
            part = network.part([members.index(m) for m in ring])
            shape = profile("all_reduce", "ring", len(ring), 0, 2)
            return predict_s(shape, int(self.num_bytes * share), part)

        return predicted_s


def plan_text(
    spec: DataSpec,
    balance: Balance,
    reduce_s: Callable[[Sequence[NodeId]], float],
    names: Mapping[NodeId, str],
    traffic: Traffic,
) -> str:
    """Return the plan for a person: who gets what, why, and what it will reach."""
    counts = dict(balance.quotas)
    members = list(counts)
    shares = ", ".join(f"{names.get(m, short(m))} {n}" for m, n in counts.items())
    text = f"a step is {spec.num_quanta} times {spec.micro_batch} samples: {shares}"
    text += f" ({_named(balance.reason, names)})"
    found = predict(counts, balance.quantum_s, reduce_s(members), balance.noise)
    text += (
        f". Expected: {found.compute_s:.2g} s computing, {found.reduce_s:.2g} s "
        f"waiting for the network, {found.efficiency:.0%} of what the machines "
        f"reach alone"
    )
    if found.efficiency >= GOAL:
        return text
    ways = list(ways_to_goal(spec, balance, members, found.reduce_s))
    if traffic.codec is not None:
        ways = [way for way in ways if "codec" not in way]
    if traffic.is_rounds:
        ways = [way for way in ways if "low_comm" not in way]
    if slow := slow_links(spec, balance, members, reduce_s):
        who = ", ".join(names.get(m, short(m)) for m in slow)
        ways.insert(0, f"a faster link to {who}, or without it")
    if not ways:
        return f"{text}; the machines are too unlike or too busy for {GOAL:.0%}"
    return f"{text}; {GOAL:.0%} with {' or '.join(ways[:3])}"


def _named(reason: str, names: Mapping[NodeId, str]) -> str:
    """Put names into a reason, which has the beginnings of ids."""
    for node, name in names.items():
        reason = reason.replace(node[:8], name)
    return reason
