"""Tells the ranks of a new group on one host which cores each may use, and lets idle
ones help.

The ranks exchange what they know and come to the same decision, with its reason in the
log. It holds as long as the group: threads that torch gets later are not seen.
"""

from __future__ import annotations

import logging
import os
import struct
from math import inf
from pathlib import Path

import torch

from ringleader.collectives.helper_threads import (
    RankCores,
    choose_helper_threads,
    has_idle_core,
)
from ringleader.deadline import Deadline
from ringleader.engine.openmp import find_set_threads
from ringleader.engine.shared_memory.helpers import Helpers
from ringleader.groups.group import Group, handle_of
from ringleader.groups.postponed_calls import PostponedCalls
from ringleader.settings import helper_threads
from ringleader.settings.launch import local_size
from ringleader.transport.socket_link import SocketLink

_log = logging.getLogger("ringleader")

CORES_TO_SEND_BEHIND = 4
"""Cores per rank of this host from which a thread may send beside the engine's. With
fewer it takes its core from the engine or from the training."""
MAX_CORES = 2048
"""Cores with higher numbers are not counted."""
_ROW = struct.Struct(f"<diii?{MAX_CORES // 8}s")
"""Quota, ranks, torch's threads, helpers asked for (-1: auto), OpenMP, set of cores."""


def share_cores(formed: Group, num_local: int, deadline: Deadline) -> None:
    """Agree on helper threads, if all ranks of ``formed`` share memory.

    ``num_local``: ranks of this host in other groups of this process. All ranks call
    it, after they have learnt the network.
    """
    _send_behind(formed, num_local)
    shared = handle_of(formed).executor.shared
    if shared is None or not handle_of(formed).network.shares_memory:
        return
    mine = torch.frombuffer(bytearray(encode(here(num_local))), dtype=torch.uint8)
    rows = [torch.empty_like(mine) for _ in range(formed.size)]
    formed.all_gather(rows, mine, algorithm="shm", timeout_s=deadline.left_s())
    ranks = [decode(bytes(r.tolist())) for r in rows]
    shared.arena.has_idle_core = has_idle_core(formed.rank, ranks)
    chosen = choose_helper_threads(ranks)
    text = "%d helper threads per rank in shared memory: %s"
    _log.info(text, chosen.count, chosen.reason)
    set_threads = find_set_threads()
    if not chosen.count or set_threads is None:
        return
    runner, is_computing = handle_of(formed).runner, None
    if not chosen.in_background:
        is_computing = runner.is_in_background
        counters = [segment.num_issued for segment in shared.arena.segments]
        own = counters.pop(formed.rank)
        runner.postponed = PostponedCalls(own, counters, runner.postponement)
    shared.use_helpers(Helpers(chosen.count, set_threads, is_computing))


def _send_behind(formed: Group, num_local: int) -> None:
    """Let a thread per encrypted link seal and send, if this rank has a core for it."""
    mesh = handle_of(formed).mesh
    num_ranks = max(num_local, local_size(), 1 + len(mesh.shm_peers))
    asked, cores = helper_threads(), int(min(len(_affinity()), cpu_quota()))
    if asked == 0 or (asked is None and cores < CORES_TO_SEND_BEHIND * num_ranks):
        return
    for link in mesh.bulk.values():
        if isinstance(link, SocketLink):
            link.use_thread()


def here(num_local: int) -> RankCores:
    """Return the cores of this process."""
    return RankCores(
        cores=_affinity(),
        quota=cpu_quota(),
        num_local=max(num_local, local_size()),
        torch_threads=torch.get_num_threads(),
        asked=helper_threads(),
        can_help=find_set_threads() is not None,
    )


def encode(rank: RankCores) -> bytes:
    """Return the row of one rank, of fixed length."""
    mask = sum(1 << core for core in rank.cores if core < MAX_CORES)
    asked = -1 if rank.asked is None else rank.asked
    cores = mask.to_bytes(MAX_CORES // 8, "little")
    return _ROW.pack(
        rank.quota, rank.num_local, rank.torch_threads, asked, rank.can_help, cores
    )


def decode(row: bytes) -> RankCores:
    """Read the row of one rank."""
    quota, num_local, torch_threads, asked, can_help, cores = _ROW.unpack(row)
    mask = int.from_bytes(cores, "little")
    return RankCores(
        cores=frozenset(core for core in range(MAX_CORES) if mask >> core & 1),
        quota=quota,
        num_local=num_local,
        torch_threads=torch_threads,
        asked=None if asked < 0 else asked,
        can_help=can_help,
    )


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return the cores whose time the control groups of this process grant."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return inf
    quotas = [inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = cgroups, ["cpu.max"]
        elif "cpu" in controllers.split(","):
            top, files = cgroups / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        folder = top / path.lstrip("/")
        while folder.is_relative_to(top):
            quotas.append(_quota(folder, files))
            folder = folder.parent
    return min(quotas)


def _quota(folder: Path, files: list[str]) -> float:
    """Return the quota of one group; infinite if it has none."""
    try:
        text = " ".join((folder / name).read_text() for name in files)
        quota, period = text.split()
    except (OSError, ValueError):
        return inf
    return inf if quota in ("max", "-1") else int(quota) / int(period)
