"""The ledger: which samples were delivered in which version, by which member.

Steps that continue each other with the same table share one run, so the ledger grows
with the changes of the table, not with the steps. Beyond ``MAX_RUNS`` the oldest runs
keep only the number of samples per member; the positions that were delivered stay exact
for ever, and a position that is delivered twice raises. All runs but the newest are
kept as bytes, and sent so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ringleader.errors import ConfigError, InternalError
from ringleader.ids import NodeId
from ringleader.training.data.data_state import DataSpec
from ringleader.training.data.intervals import Interval, Intervals, union
from ringleader.training.data.ledger_runs import (
    Entry,
    PackedRuns,
    Parts,
    Run,
    pack_intervals,
    pack_samples,
    unpack_intervals,
    unpack_samples,
)

MAX_RUNS: Final = 1024
"""About a day, if the table changes every few minutes; 300 KB for a newcomer."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was delivered so far; part of the replicated state."""

    closed: PackedRuns = field(default_factory=PackedRuns)
    last: Run | None = None
    """The newest run, which the next version may continue."""
    covered: Intervals = ()
    """Positions of the current epoch that were delivered."""
    epoch: int = 0
    folded: bytes = b""
    """Samples by member in runs that are no longer kept."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that are still kept, the oldest first."""
        return (*self.closed, *([self.last] if self.last else []))

    def entries(self) -> Iterator[Entry]:
        """Yield what each member computed, in the versions that are still kept."""
        for run in self.runs:
            yield from run.entries()

    def samples_by_node(self) -> dict[NodeId, int]:
        """Return how many delivered samples each member computed."""
        counts = unpack_samples(self.folded)
        for run in self.runs:
            for node, count in run.samples():
                counts[node] = counts.get(node, 0) + count
        return counts

    def to_plain(self) -> dict[str, Any]:
        """Return numbers and bytes, for checkpoints and newcomers."""
        runs = self.closed.with_last(self.last) if self.last else self.closed
        return {
            "epoch": self.epoch,
            "covered": pack_intervals(self.covered),
            "folded": self.folded,
            "heads": runs.heads,
            "parts": runs.parts,
            "spans": runs.spans,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Ledger:
        """Return the ledger that ``to_plain`` gave. Raises ConfigError otherwise."""
        try:
            tables = [plain[key] for key in ("heads", "parts", "spans", "folded")]
            if not all(type(table) is bytes for table in tables):
                raise ConfigError("a ledger whose tables are not bytes")
            runs, folded = PackedRuns(*tables[:3]), tables[3]
            runs.check(MAX_RUNS)
            unpack_samples(folded)
            closed, newest = runs.split_last() if len(runs) else (runs, runs)
            covered = unpack_intervals(plain["covered"])
            last = next(iter(newest), None)
            return cls(closed, last, covered, int(plain["epoch"]), folded)
        except (KeyError, TypeError, ValueError) as error:
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
    covered = _covered(covered, *parts.values())
    return _with(replace(ledger, covered=covered, epoch=epoch), new)


def _covered(before: Intervals, *parts: Intervals) -> Intervals:
    """Return all positions; most steps change only the last interval of many."""
    begin = min((part[0].begin for part in parts if part), default=0)
    if before and begin >= before[-1].begin:
        return (*before[:-1], *union(before[-1:], *parts))
    return union(before, *parts)


def _with(ledger: Ledger, new: Run) -> Ledger:
    """Add a version to the last run if it continues that, else as a run."""
    last = ledger.last
    if last is None:
        return replace(ledger, last=new)
    if _continues(last, new):
        longer = replace(last, num_versions=last.num_versions + 1)
        return replace(ledger, last=longer)
    closed = ledger.closed.with_last(last)
    return _bounded(replace(ledger, closed=closed, last=new))


def _continues(last: Run, new: Run) -> bool:
    return (
        new.first_version == last.first_version + last.num_versions
        and (new.epoch, new.stride) == (last.epoch, last.stride)
        and new.parts == _shifted(last.parts, last.num_versions * last.stride)
    )


def _bounded(ledger: Ledger) -> Ledger:
    """Keep only the number of samples of the oldest run, if there are too many."""
    if len(ledger.closed) < MAX_RUNS:
        return ledger
    oldest, rest = ledger.closed.split_first()
    counts = Ledger(oldest, folded=ledger.folded).samples_by_node()
    return replace(ledger, closed=rest, folded=pack_samples(counts))


def _shifted(parts: Parts, distance: int) -> Parts:
    return tuple(
        (node, tuple(Interval(a + distance, b + distance) for a, b in intervals))
        for node, intervals in parts
    )
