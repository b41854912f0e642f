"""How many threads help each rank of a host with large copies and additions.

Helpers only ever use cores that would be idle. Threads beside those of torch take, with
all threads that the ranks have already, at most three quarters of the cores. A quarter
is left to loaders, to the system and to other programs, which nobody tells us of. There
also has to be a core for a thread of each rank that communicates in the background.
Where torch's own threads leave less than that, and are no more than there are cores,
they help a thread that does nothing but communicate: they wait for it anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

MAX_HELPERS = 7
"""Eight threads reach the bandwidth of the memory of a usual machine, and a part of a
relay, 1 MiB at most, has no work for more: torch gives each thread 128 KiB of floats.
"""
MAX_RANKS = 8
"""With more ranks a part of a relay is too small to be divided; see ``Geometry``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCores:
    """One rank, and the cores that it may use."""

    cores: frozenset[int]
    """Numbers of the cores that its affinity allows."""
    quota: float = inf
    """Cores whose time its control groups grant; infinite without a limit."""
    num_local: int = 1
    """Ranks on this host that it knows of, also those outside the group."""
    torch_threads: int = 1
    """Threads by which torch computes an operation in this rank."""
    asked: int | None = None
    """Helpers that RINGLEADER_HELPER_THREADS asks for; None for "auto"."""
    can_help: bool = True
    """False if the number of torch's threads cannot be set for one thread alone."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many threads help every rank, and when."""

    count: int
    reason: str
    in_background: bool = True
    """Whether they help the background thread, too, while the program computes."""


def choose_helper_threads(ranks: Sequence[RankCores]) -> Decision:
    """Return the helpers of every rank of a group on one host.

    The decision is equal for all: that of the rank that can have the fewest.
    """
    if len(ranks) > MAX_RANKS:
        reason = f"{len(ranks)} ranks: parts of more than {MAX_RANKS} are too small"
        return Decision(0, reason)
    decisions = [_choose(rank, ranks) for rank in range(len(ranks))]
    fewest = min(
        range(len(ranks)),
        key=lambda rank: (decisions[rank].in_background, decisions[rank].count),
    )
    found = decisions[fewest]
    count = min(each.count for each in decisions)
    is_unequal = any(each != found for each in decisions)
    reason = f"rank {fewest}: {found.reason}" if is_unequal else found.reason
    return Decision(count, reason, found.in_background)


def has_idle_core(rank: int, ranks: Sequence[RankCores]) -> bool:
    """Whether ``rank`` has a core for a thread that communicates, beside torch's."""
    num_ranks, used, cores = _usage(rank, ranks)
    return used + num_ranks <= cores


def _usage(rank: int, ranks: Sequence[RankCores]) -> tuple[int, int, int]:
    """Return the ranks on the cores of ``rank``, their torch threads, and the cores."""
    own = ranks[rank]
    sharing = [each for each in ranks if each.cores & own.cores]
    # Ranks outside the group are taken to be like this one, and on the same cores.
    unseen = max(0, max(each.num_local for each in ranks) - len(ranks))
    used = sum(each.torch_threads for each in sharing) + unseen * own.torch_threads
    return len(sharing) + unseen, used, int(min(len(own.cores), own.quota))


def _choose(rank: int, ranks: Sequence[RankCores]) -> Decision:
    own = ranks[rank]
    if own.asked is not None and (own.can_help or own.asked == 0):
        return Decision(own.asked, f"RINGLEADER_HELPER_THREADS is {own.asked}")
    if not own.can_help:
        return Decision(0, "torch's OpenMP library was not found in this process")
    num_ranks, used, cores = _usage(rank, ranks)
    room = min(3 * cores // 4, cores - num_ranks) - used
    limit = f" (of {len(own.cores)}, by cgroup quota)" if cores < len(own.cores) else ""
    state = f"{num_ranks} ranks with {used} threads on {cores} cores{limit}"
    if own.torch_threads > 1 and used <= cores:
        # As many threads as torch has: a team of another size would end and start
        # threads at every call.
        count = min(MAX_HELPERS, own.torch_threads - 1)
        if num_ranks * count > room:
            reason = f"{state}; torch's own threads, while their rank waits"
            return Decision(count, reason, in_background=False)
        return Decision(count, f"{state}; as many threads as torch has")
    if room < num_ranks:
        return Decision(0, f"{state} leave none idle, as a quarter is left to others")
    helpers = min(MAX_HELPERS, room // num_ranks)
    return Decision(helpers, f"{state}; a quarter of the cores is left to others")
