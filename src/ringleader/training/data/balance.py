"""Shares of work from measured quantum times.

Each delivered step carries the quantum time and the flags of every member. ``observe``
turns them into the quotas of the next step. It is a pure function of what was
delivered, so all members hold the same balance and give out the same quotas.

- The quantum time of a member is the median of its last five, smoothed (weight 0.2 for
  the newest). A member that was more than 25 % late starts again from that step alone,
  and one that was more than 20 % early in two steps from those two.
- Quotas change at once when the members or the spares change, or a quantum time as
  above. Else others must be faster in several steps in a row, by 15 % of a step in all,
  of which a step counts 5 % at most: a gain of 5 % needs three steps, one of 2 % eight.
- Three quanta decide: a member with fewer measurements gets at least one quantum, so
  that one slow quantum (warming up, a busy moment) takes its work away for no longer.
- A member that gets no quantum because it is slow is measured again from time to time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from statistics import median_low
from typing import Any, Final, NamedTuple

from ringleader.errors import ConfigError
from ringleader.ids import NodeId
from ringleader.training.data.assignment import Quotas, quotas

WINDOW: Final = 5
SMOOTHING: Final = 0.2
MIN_GAIN: Final = 0.01
"""Share of the step time below which a gain is taken for noise."""
MAX_CREDIT: Final = 0.05
"""The most credit that one step adds, however large its gain."""
ENOUGH_CREDIT: Final = 0.15
"""Credit at which the quotas change."""
LATE: Final = 1.25
"""A quantum that takes so many times the usual time is more than noise, which is 2 to
10 % on a machine in use."""
NEW: Final = 3
"""A member with fewer measurements is new: its first quanta include warming up."""
PROBE_COST: Final = 0.05
"""Share of the time that may be spent on measuring members without work."""
MAX_QUANTUM_S: Final = 1e6
MAX_ABSENT: Final = 64
"""Machines that left and whose speed is remembered until they return."""


class Flag(IntFlag):
    """What a member announces with each step."""

    BATTERY = 1
    """It runs on a battery that is nearly empty."""
    LEAVING = 2
    """It leaves after this step (SIGTERM, for example at shutdown)."""
    SAVED = 4
    """It has copied the version before this step, for a checkpoint."""


RESTS: Final = Flag.BATTERY | Flag.LEAVING
"""A member that announces one of these gets no quanta."""


class Report(NamedTuple):
    """Measurements of one member in a step. They travel in bucket 0, the sideband."""

    quantum_s: float
    """Median time to compute a full quantum, without waiting for others; 0: none."""
    flags: Flag = Flag(0)


@dataclass(frozen=True, slots=True)
class Speed:
    """The quantum time of one member."""

    quantum_s: float
    recent_s: tuple[float, ...]
    """The last measurements, the newest at the end."""
    unmeasured: int = 0
    """Steps since the last measurement."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Speeds and quotas after a delivered step; part of the replicated state."""

    speeds: tuple[tuple[NodeId, Speed], ...] = ()
    quotas: tuple[tuple[NodeId, int], ...] = ()
    """Number of quanta of each member in the next full step, in ring order."""
    spares: tuple[NodeId, ...] = ()
    credit: float = 0.0
    """Time that other quotas would have saved in the last steps, in steps."""
    noise: float = 0.0
    """Mean relative deviation of quantum times."""
    reason: str = "nothing is measured yet"

    @property
    def quantum_s(self) -> dict[NodeId, float]:
        """Quantum times by member, as far as measured."""
        return {node: speed.quantum_s for node, speed in self.speeds}

    def quotas_for(self, num_quanta: int, members: Sequence[NodeId]) -> Quotas:
        """Return how many of ``num_quanta`` each of ``members`` gets in a step."""
        planned = dict(self.quotas)
        if list(planned) == list(members) and sum(planned.values()) == num_quanta:
            return planned
        return quotas(num_quanta, members, self.quantum_s, self.spares)

    def to_plain(self) -> dict[str, Any]:
        """Return numbers, strings and lists, for checkpoints and newcomers."""
        speeds = [
            [n, s.quantum_s, list(s.recent_s), s.unmeasured] for n, s in self.speeds
        ]
        return {
            "speeds": speeds,
            "quotas": [list(item) for item in self.quotas],
            "spares": list(self.spares),
            "credit": self.credit,
            "noise": self.noise,
            "reason": self.reason,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Balance:
        """Return the balance that ``to_plain`` gave. Raises ConfigError otherwise."""
        try:
            return cls(
                speeds=tuple(_speed(*values) for values in plain["speeds"]),
                quotas=tuple((NodeId(str(n)), int(c)) for n, c in plain["quotas"]),
                spares=tuple(NodeId(str(node)) for node in plain["spares"]),
                credit=float(plain["credit"]),
                noise=float(plain["noise"]),
                reason=str(plain["reason"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a valid balance of the work: {error!r}") from error


def observe(
    balance: Balance,
    num_quanta: int,
    members: Sequence[NodeId],
    reports: Mapping[NodeId, Report],
) -> Balance:
    """Return the balance after a delivered step of ``members``, in ring order.

    ``num_quanta`` is that of a full step. Members with a flag get none.
    """
    before = dict(balance.speeds)
    speeds: dict[NodeId, Speed] = {}
    changed = []
    for member in members:
        old, time_s = before.get(member), _time_s(reports.get(member))
        if time_s is not None:
            speeds[member], is_change = _measured(old, time_s)
            changed += [member] if is_change else []
        elif old is not None:
            speeds[member] = replace(old, unmeasured=old.unmeasured + 1)
    absent = [node for node in before if node not in members][-MAX_ABSENT:]
    speeds.update((node, before[node]) for node in absent)
    spares = tuple(m for m in members if m in reports and reports[m].flags & RESTS)
    measured = replace(
        balance,
        speeds=tuple(sorted(speeds.items())),
        noise=_noise(balance, members, reports),
    )
    return _planned(measured, num_quanta, members, spares, changed)


def step_s(counts: Mapping[NodeId, int], quantum_s: Mapping[NodeId, float]) -> float:
    """Return the time until the last member has computed its quanta."""
    return max((n * quantum_s.get(m, 0.0) for m, n in counts.items()), default=0.0)


def _planned(
    balance: Balance,
    num_quanta: int,
    members: Sequence[NodeId],
    spares: tuple[NodeId, ...],
    changed: Sequence[NodeId],
) -> Balance:
    """Return the balance with the quotas of the next step."""
    quantum_s = balance.quantum_s
    now = dict(balance.quotas)
    best = quotas(num_quanta, members, quantum_s, spares)
    best_s = step_s(best, quantum_s)
    if probed := _to_measure(balance, best, spares, best_s):
        known = {m: s for m, s in quantum_s.items() if m not in probed}
        best = quotas(num_quanta, members, known, spares)
        names = ", ".join(node[:8] for node in probed)
        return _changed(balance, best, spares, f"{names}: measured again")
    if list(now) != list(members) or sum(now.values()) != num_quanta:
        reason = "the machines of the run changed" if now else "first measurements"
        return _changed(balance, best, spares, reason)
    if spares != balance.spares:
        return _changed(balance, best, spares, _spares_text(spares))
    gain = 1 - best_s / step_s(now, quantum_s) if best_s else 0.0
    if gain < MIN_GAIN:
        return replace(balance, credit=0.0)
    if changed:
        names = ", ".join(node[:8] for node in changed)
        return _changed(balance, best, spares, f"the speed of {names} changed")
    credit = balance.credit + min(gain, MAX_CREDIT)
    if credit >= ENOUGH_CREDIT:
        return _changed(balance, best, spares, f"{gain:.0%} faster than before")
    return replace(balance, credit=credit)


def _changed(
    balance: Balance, counts: Quotas, spares: tuple[NodeId, ...], reason: str
) -> Balance:
    planned = tuple(counts.items())
    return replace(balance, quotas=planned, spares=spares, credit=0.0, reason=reason)


def _spares_text(spares: tuple[NodeId, ...]) -> str:
    names = ", ".join(node[:8] for node in spares)
    return f"without work: {names}" if spares else "all machines work"


def _to_measure(
    balance: Balance, counts: Quotas, spares: Collection[NodeId], planned_s: float
) -> tuple[NodeId, ...]:
    """Return the members without work whose speed must be measured (again).

    Those with few measurements, and those idle for so long that it costs little.
    """
    found = []
    for node, speed in balance.speeds:
        is_idle = counts.get(node) == 0 and node not in spares
        allowed_s = speed.unmeasured * planned_s * PROBE_COST
        is_due = allowed_s >= speed.quantum_s or len(speed.recent_s) < NEW
        if is_idle and is_due:
            found.append(node)
    return tuple(found)


def _time_s(report: Report | None) -> float | None:
    """Return the quantum time of a report, or None if it holds none."""
    if report is None or not math.isfinite(report.quantum_s):
        return None
    return report.quantum_s if 0 < report.quantum_s <= MAX_QUANTUM_S else None


def _measured(old: Speed | None, time_s: float) -> tuple[Speed, bool]:
    """Return the speed after a measurement, and whether it replaced the old one."""
    if old is None:
        return Speed(time_s, (time_s,)), True
    recent = (*old.recent_s, time_s)[-WINDOW:]
    if old.unmeasured:
        is_slow_still = time_s > old.quantum_s / LATE
        return Speed(time_s, recent if is_slow_still else (time_s,)), True
    middle = median_low(recent)  # of two the faster one: the first includes warming up
    if len(old.recent_s) < NEW:
        return Speed(middle, recent), True
    if time_s > old.quantum_s * LATE:
        return Speed(time_s, (time_s,)), True
    if max(recent[-2:]) < old.quantum_s / LATE:
        return Speed(max(recent[-2:]), recent[-2:]), True
    smoothed_s = old.quantum_s + SMOOTHING * (middle - old.quantum_s)
    return Speed(smoothed_s, recent), False


def _noise(
    balance: Balance, members: Sequence[NodeId], reports: Mapping[NodeId, Report]
) -> float:
    """Return the smoothed relative deviation of quantum times from those expected."""
    expected = balance.quantum_s
    seen = {m: _time_s(reports.get(m)) for m in members if m in expected}
    offsets = [abs(t / expected[m] - 1) for m, t in seen.items() if t is not None]
    if not offsets:
        return balance.noise
    newest = min(1.0, sum(offsets) / len(offsets))
    return balance.noise + SMOOTHING * (newest - balance.noise)


def _speed(
    node: str, quantum_s: float, recent_s: list[float], unmeasured: int
) -> tuple[NodeId, Speed]:
    recent = tuple(float(time_s) for time_s in recent_s)[-WINDOW:]
    return NodeId(str(node)), Speed(float(quantum_s), recent, int(unmeasured))
