"""``TrafficReader``: what the workers of this machine send, and for whom they wait.

Workers publish metrics in one folder per user. A worker belongs to the job whose
launcher has started it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from ringleader.dashboard.job_rows import RankTraffic
from ringleader.metrics.snapshot import Snapshot
from ringleader.metrics.worker_files import read_files
from ringleader.node.protocol.agent_config import metrics_directory
from ringleader.topology.process_tree import ancestors

_WAIT = "ringleader_collective_wait_seconds_total"
_SENT = "ringleader_link_sent_bytes_total"
_RAW = "ringleader_codec_raw_bytes_total"
_CODED = "ringleader_codec_coded_bytes_total"
_HOOK_RAW = "ringleader_compression_raw_bytes_total"
_HOOK_SENT = "ringleader_compression_sent_bytes_total"


class TrafficReader:
    """Compares what workers publish with what they published before."""

    def __init__(self, home: Path) -> None:
        self._folder = metrics_directory(home)
        self._before: dict[int, tuple[float, Snapshot]] = {}
        self._shown: dict[int, tuple[str, RankTraffic]] = {}

    def read(self, folders: Mapping[str, list[Path]]) -> list[tuple[str, RankTraffic]]:
        """Return job and traffic of each worker; ``folders`` are those of numbers."""
        launchers = {int(p.name): job for job, paths in folders.items() for p in paths}
        found = {}
        for values in read_files(self._folder):
            pid_text = values.labels.get("pid", "")
            rank_text = values.labels.get("rank", "")
            if not (pid_text.isdecimal() and rank_text.isdecimal()):
                continue  # before its first group
            pid = int(pid_text)
            if job := self._job(pid, launchers):
                self._note(pid, job, int(rank_text), values.snapshot)
            if pid in self._shown:
                found[pid] = self._shown[pid]
        self._shown = found
        return list(found.values())

    def _job(self, pid: int, launchers: Mapping[int, str]) -> str:
        if pid in self._shown:
            return self._shown[pid][0]
        above = ancestors(pid) & launchers.keys()
        return launchers[next(iter(above))] if above else ""

    def _note(self, pid: int, job: str, rank: int, now: Snapshot) -> None:
        """Remember the traffic since the last file that differed."""
        now_s = time.monotonic()
        before_s, before = self._before.get(pid, (now_s, now))
        if pid not in self._before or now.values != before.values:
            self._before[pid] = (now_s, now)
        if now_s > before_s and now.values != before.values:
            passed_s = now_s - before_s
            self._shown[pid] = (job, traffic(rank, now.since(before), passed_s))


def traffic(rank: int, since: Snapshot, passed_s: float) -> RankTraffic:
    """Return rates from what was counted in ``passed_s``."""
    waits = {
        labels[0]: value
        for labels, value in since.values.get(_WAIT, {}).items()
        if isinstance(value, float | int)
    }
    slowest = max(waits, key=lambda peer: waits[peer], default="")
    wait_s = waits.get(slowest, 0.0)
    return RankTraffic(
        rank=rank,
        sent_bytes_per_s=since.value(_SENT) / passed_s,
        waits_for=int(slowest) if slowest.isdecimal() and wait_s > 0 else -1,
        wait_share=min(1.0, wait_s / passed_s),
        compression=_compression(since),
    )


def _compression(since: Snapshot) -> float:
    """Return how many times smaller gradients became; 0: nothing was compressed."""
    raw, sent = since.value(_HOOK_RAW), since.value(_HOOK_SENT)
    if not sent:
        raw = since.value(_RAW, step="encode")
        sent = since.value(_CODED, step="encode")
    return raw / sent if sent else 0.0
