"""The ledger: which samples were delivered in which version, by which member.

Steps that continue each other with the same table share one run, so the ledger grows
with the changes of the table, not with the steps. Beyond ``MAX_RUNS`` the oldest runs
keep only the number of samples per member; the positions that were delivered stay exact
for ever, and a position that is delivered twice raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from ringleader.errors import ConfigError, InternalError
from ringleader.ids import NodeId
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.intervals import (
    Interval,
    Intervals,
    num_positions,
    union,
)

MAX_RUNS: Final = 1024
"""About a day, if the table changes every few minutes; 200 KB for a newcomer."""


class Entry(NamedTuple):
    """Positions of one epoch that one member computed for one version."""

    version: int
    node: NodeId
    epoch: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive versions whose positions follow each other with the same table."""

    first_version: int
    num_versions: int
    epoch: int
    stride: int
    """Distance between the positions of one version and those of the next."""
    parts: tuple[tuple[NodeId, Intervals], ...]
    """Positions of the first version by member."""

    def entries(self) -> Iterator[Entry]:
        """Yield what each member computed, version by version."""
        for number in range(self.num_versions):
            for node, intervals in _shifted(self.parts, number * self.stride):
                for begin, end in intervals:
                    version = self.first_version + number
                    yield Entry(version, node, self.epoch, begin, end)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was delivered so far; part of the replicated state."""

    runs: tuple[Run, ...] = ()
    covered: Intervals = ()
    """Positions of the current epoch that were delivered."""
    epoch: int = 0
    folded: tuple[tuple[NodeId, int], ...] = ()
    """Samples by member in runs that are no longer kept."""

    def entries(self) -> Iterator[Entry]:
        """Yield what each member computed, in the versions that are still kept."""
        for run in self.runs:
            yield from run.entries()

    def samples_by_node(self) -> dict[NodeId, int]:
        """Return how many delivered samples each member computed."""
        counts = dict(self.folded)
        for run in self.runs:
            for node, intervals in run.parts:
                count = num_positions(intervals) * run.num_versions
                counts[node] = counts.get(node, 0) + count
        return counts

    def to_plain(self) -> dict[str, Any]:
        """Return numbers, strings and lists, for checkpoints and newcomers."""
        return {
            "epoch": self.epoch,
            "covered": [list(interval) for interval in self.covered],
            "folded": [list(item) for item in self.folded],
            "runs": [_plain_run(run) for run in self.runs],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Ledger:
        """Return the ledger that ``to_plain`` gave. Raises ConfigError otherwise."""
        try:
            runs = tuple(_run(*values) for values in plain["runs"])
            if len(runs) > MAX_RUNS:
                raise ConfigError(f"a ledger of {len(runs)} runs; at most {MAX_RUNS}")
            folded = tuple((NodeId(str(n)), int(c)) for n, c in plain["folded"])
            return cls(runs, _intervals(plain["covered"]), int(plain["epoch"]), folded)
        except (InternalError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"not a valid ledger of delivered data: {error!r}"
            ) from error


def record(
    ledger: Ledger,
    spec: DataSpec,
    version: int,
    epoch: int,
    parts: Mapping[NodeId, Intervals],
) -> Ledger:
    """Return the ledger with the positions of one version by member.

    Raises InternalError if one of them was delivered before, or if an epoch begins
    while the one before it lacks a position.
    """
    covered = ledger.covered
    if epoch != ledger.epoch:
        if (epoch, covered) != (ledger.epoch + 1, (Interval(0, spec.num_samples),)):
            text = f"epoch {epoch} after {covered} of epoch {ledger.epoch}"
            raise InternalError(f"version {version} delivers {text}")
        covered = ()
    new = Run(
        first_version=version,
        num_versions=1,
        epoch=epoch,
        stride=spec.global_batch,
        parts=tuple((node, part) for node, part in parts.items() if part),
    )
    return _bounded(
        replace(
            ledger,
            runs=_appended(ledger.runs, new),
            covered=union(covered, *parts.values()),
            epoch=epoch,
        )
    )


def _appended(runs: tuple[Run, ...], new: Run) -> tuple[Run, ...]:
    """Add a version to the last run if it continues that, else as a run."""
    if not runs:
        return (new,)
    last = runs[-1]
    expected = replace(
        new,
        first_version=last.first_version + last.num_versions,
        parts=_shifted(last.parts, last.num_versions * last.stride),
    )
    if new != expected or last.epoch != new.epoch:
        return (*runs, new)
    return (*runs[:-1], replace(last, num_versions=last.num_versions + 1))


def _bounded(ledger: Ledger) -> Ledger:
    """Keep only the number of samples of the oldest run, if there are too many."""
    if len(ledger.runs) <= MAX_RUNS:
        return ledger
    oldest = Ledger(ledger.runs[:1], folded=ledger.folded)
    counts = tuple(sorted(oldest.samples_by_node().items()))
    return replace(ledger, runs=ledger.runs[1:], folded=counts)


def _shifted(
    parts: tuple[tuple[NodeId, Intervals], ...], distance: int
) -> tuple[tuple[NodeId, Intervals], ...]:
    return tuple(
        (node, tuple(Interval(a + distance, b + distance) for a, b in intervals))
        for node, intervals in parts
    )


def _plain_run(run: Run) -> list[Any]:
    parts = [[node, [list(i) for i in intervals]] for node, intervals in run.parts]
    return [run.first_version, run.num_versions, run.epoch, run.stride, parts]


def _run(first: int, count: int, epoch: int, stride: int, parts: list[Any]) -> Run:
    named = tuple((NodeId(str(node)), _intervals(plain)) for node, plain in parts)
    return Run(int(first), int(count), int(epoch), int(stride), named)


def _intervals(plain: list[list[int]]) -> Intervals:
    return union(Interval(int(begin), int(end)) for begin, end in plain)
