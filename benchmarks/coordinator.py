"""Measures one coordinator process with 500 workers that register and send heartbeats.

    .venv/bin/python benchmarks/coordinator.py [--workers 500] [--out FILE.json]

The coordinator is the command, with TLS and its state file. Workers are real sessions
with a connection, a heartbeat per second and a watch each, in processes of their own.
They arrive within ``--arrival`` seconds, beat for ``--steady`` seconds, register again
once, and then lose the coordinator by SIGKILL. ``register_ms`` are times of the call
RegisterWorker, ``start_ms`` those with connecting and the TLS handshake before it;
``cores`` is CPU time of the coordinator by time, which other programs hardly change.
Times do change: repeat them on a quiet machine before you quote them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ringleader.coordinator.client.channel import JobNamespace
from ringleader.coordinator.client.session import CoordinatorSession, WorkerInfo
from ringleader.deadline import Deadline
from ringleader.identity import cluster_secret
from ringleader.identity.cluster_secret import ROOT_BYTES, ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home

CLUSTER = ClusterSecret(root=Secret(b"b" * ROOT_BYTES), name="benchmark")
HEARTBEAT_TIMEOUT_S = 4.0  # makes workers beat every second
PROCESSES = 4
LIMIT_S = 60.0


def main() -> None:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--arrival", type=float, default=10.0)
    parser.add_argument("--steady", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--simulate", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.simulate:
        asyncio.run(simulate(*map(int, options.simulate.split(",")), options.arrival))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options)
    record = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "workers": options.workers,
        "arrival_s": options.arrival,
        "steady_s": options.steady,
        **found,
    }
    print(json.dumps(record, indent=1))
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


class Coordinator:
    """The command as a process, and the CPU time that it used."""

    def __init__(self, home: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "ringleader.cli.main", "coordinator"]
        command += ["--listen", f"127.0.0.1:{port}"]
        command += ["--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)]
        env = os.environ | {"RINGLEADER_HOME": str(home)}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split(":")[1].split()[0])
        self.mark()

    def mark(self) -> None:
        """Begin to measure."""
        self._at_s, self._used_s = time.monotonic(), self._cpu_s()

    def cores(self) -> float:
        """Return the cores used since ``mark``."""
        used_s = self._cpu_s() - self._used_s
        return round(used_s / (time.monotonic() - self._at_s), 3)

    def peak_mb(self) -> int:
        """Return the most memory that it had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
        return int(line.split()[1]) // 1024

    def _cpu_s(self) -> float:
        text = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        ticks = sum(int(each) for each in text.split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self, number: signal.Signals) -> None:
        """End it."""
        self.process.send_signal(number)
        self.process.wait(LIMIT_S)


class Simulators:
    """Processes with workers, told by lines what to do next."""

    def __init__(self, port: int, options: argparse.Namespace) -> None:
        share = [options.workers // PROCESSES] * PROCESSES
        share[0] += options.workers % PROCESSES
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, "--arrival", str(options.arrival)),
                    *("--simulate", f"{port},{number},{count},{options.workers}"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number, count in enumerate(share)
        ]

    def do(self, what: str) -> list[float]:
        """Tell all of them, and return what all of them measured."""
        for each in self.processes:
            assert each.stdin is not None
            each.stdin.write(f"{what}\n")
            each.stdin.flush()
        return [ms for each in self.processes for ms in self._answer(each)]

    def _answer(self, process: subprocess.Popen[str]) -> list[float]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a simulator ended"
        return [float(each) for each in json.loads(line)]


def measure(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Return the figures of all phases."""
    home = Home(folder / "home")
    with home.writing() as change:
        cluster_secret.store(change, CLUSTER)
    first = second = Coordinator(home.path)
    simulators = Simulators(first.port, options)
    try:
        simulators.do("ready")
        first.mark()
        start_ms = simulators.do("start")
        arriving = first.cores()
        first.mark()
        time.sleep(options.steady)
        steady = first.cores()
        first.mark()
        register_ms = simulators.do("register")
        registering = first.cores()
        peak_mb = first.peak_mb()
        first.end(signal.SIGKILL)
        second = Coordinator(home.path, first.port)
        killed_s = time.monotonic()
        lost = sum(simulators.do("return"))
        returned_s = round(time.monotonic() - killed_s, 2)
        simulators.do("end")
        second.end(signal.SIGTERM)
    finally:
        for each in (*simulators.processes, first.process, second.process):
            each.kill()
            each.wait()
    return {
        "start_ms": percentiles(start_ms),
        "register_ms": percentiles(register_ms),
        "cores_used": {
            "arriving": arriving,
            "steady": steady,
            "registering_again": registering,
        },
        "peak_mb": peak_mb,
        "after_kill": {"returned_s": returned_s, "lost_or_other_rank": int(lost)},
    }


def percentiles(found: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the largest."""
    ordered = sorted(found)
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    last = len(ordered) - 1
    return {name: round(ordered[round(part * last)], 2) for name, part in at.items()}


# -- a process with simulated workers -------------------------------------------------


class Simulator:
    """Some of the workers."""

    def __init__(self, port: int, number: int, count: int, total: int) -> None:
        pem = Credentials.issue(CLUSTER, NodeKey.ephemeral()).pem()
        self.total = total
        self.sessions = [
            CoordinatorSession(
                f"127.0.0.1:{port}",
                WorkerInfo(
                    namespace=JobNamespace(CLUSTER.coordinator_key()),
                    worker_id=f"worker-{number}-{index}",
                    addresses=(f"10.0.{number}.{index % 250 + 1}:7000",),
                ),
                tls=lambda: pem,
                on_trouble=lambda _, index=index: self.disturbed.add(index),
            )
            for index in range(count)
        ]
        self.disturbed: set[int] = set()
        """Numbers of the sessions that have lost the coordinator."""
        self.ranks: list[int] = []

    async def start(self, arrival_s: float) -> list[float]:
        """Start all, spread over a time; return how long each took."""
        gap_s = arrival_s / len(self.sessions)

        async def one(index: int, session: CoordinatorSession) -> float:
            await asyncio.sleep(index * gap_s)
            begin_s = time.perf_counter()
            await session.start(Deadline.after(LIMIT_S))
            return 1000 * (time.perf_counter() - begin_s)

        jobs = [one(index, each) for index, each in enumerate(self.sessions)]
        found = await asyncio.gather(*jobs)
        await self._until(lambda each: len(each.peers) == self.total)
        self.ranks = [each.rank for each in self.sessions]
        self.disturbed.clear()
        return list(found)

    async def register(self) -> list[float]:
        """Register all again, one after the other; return how long each took."""
        found = []
        for each in self.sessions:
            begin_s = time.perf_counter()
            await each._register(LIMIT_S)
            found.append(1000 * (time.perf_counter() - begin_s))
            await asyncio.sleep(0.02)
        return found

    async def come_back(self) -> list[float]:
        """Wait until all are registered again; return how many ranks differ."""
        everyone = set(range(len(self.sessions)))
        await self._until(
            lambda each: (
                self.disturbed == everyone
                and each.trouble is None
                and len(each.peers) == self.total
            )
        )
        ranks = [each.rank for each in self.sessions]
        return [sum(a != b for a, b in zip(ranks, self.ranks, strict=True))]

    async def end(self) -> list[float]:
        """Unregister all."""
        await asyncio.gather(*(each.close() for each in self.sessions))
        return []

    async def _until(self, is_so: object) -> None:
        assert callable(is_so)
        deadline = Deadline.after(LIMIT_S)
        while not all(is_so(each) for each in self.sessions):
            assert not deadline.is_over(), [each.trouble for each in self.sessions][:3]
            await asyncio.sleep(0.05)


async def simulate(
    port: int, number: int, count: int, total: int, arrival_s: float
) -> None:
    """Do what standard input says, and print the results."""
    simulator = Simulator(port, number, count, total)
    while True:
        what = (await asyncio.to_thread(sys.stdin.readline)).strip()
        found: list[float] = []
        if what == "start":
            found = await simulator.start(arrival_s)
        elif what == "register":
            found = await simulator.register()
        elif what == "return":
            found = await simulator.come_back()
        elif what in ("end", ""):
            found = await simulator.end()
        print(json.dumps(found), flush=True)
        if what in ("end", ""):
            return


if __name__ == "__main__":
    main()
