"""Measures workers of a parameter server while strangers flood it with connections.

Run as a program by ``measure``, in a network namespace of its own, where every address
of 10.99.0.0/16 is this machine: ``server_flood.py SECONDS KIND:ADDRESSES:PER_S``.
It alternates calm phases and floods, and prints a JSON list of ``Phase``.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import httpx2
import torch

from ringleader.node.launch.end_with_parent import kill_on_death_of_parent
from tests.kit.param_server import WorkerClient, server

SERVER = "10.99.0.1"
WORKERS = 2
_COMPUTE_S = 0.05
"""Time that a worker takes for a step, in which it leaves the processor to others."""
_TICK_S = 0.01
_MOST_S = 60.0
_HELD_S = 1.0
"""How long a stranger keeps a connection that the server does not close."""
_NETWORK = "ip link set lo up && ip route add local 10.99.0.0/16 dev lo"

_FORK = mp.get_context("fork")
_TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TRUSTING.check_hostname = False
_TRUSTING.verify_mode = ssl.CERT_NONE


@dataclass(frozen=True)
class Flood:
    """Connections per second from each of some addresses.

    A ``silent`` one sends nothing, a ``hello`` one begins a TLS handshake and stops.
    """

    kind: str
    addresses: int
    per_s: float

    @classmethod
    def parse(cls, text: str) -> Flood:
        kind, addresses, per_s = text.split(":")
        return cls(kind, int(addresses), float(per_s))

    def __str__(self) -> str:
        return f"{self.kind}:{self.addresses}:{self.per_s:g}"


@dataclass
class Phase:
    """What was measured in some seconds."""

    flood: str
    """Empty in a calm phase."""
    seconds: float
    updates_per_s: float
    connections_per_s: float
    errors: int
    """Requests of workers that failed."""
    joined_s: float
    """Time that a new worker needed to join in this phase."""
    server_cpu: float
    """Cores that the server used."""
    server_files: int
    """Descriptors that the server had open at the end."""
    server_kb: int
    """Memory of the server at the end."""


def measure(seconds: float, floods: list[Flood], timeout_s: float) -> list[Phase]:
    """Run the program in its namespace (root) and return the phases in order."""
    program = [sys.executable, "-m", "tests.kit.server_flood", str(seconds)]
    program += [str(flood) for flood in floods]
    run = subprocess.run(
        ["unshare", "-n", "sh", "-c", f'{_NETWORK} && exec "$@"', "sh", *program],
        stdout=subprocess.PIPE,
        timeout=timeout_s,
        check=True,
    )
    return [Phase(**phase) for phase in json.loads(run.stdout)]


def ratios(phases: list[Phase]) -> dict[str, float]:
    """Return the rate of workers in each flood, as a part of the calm around it."""
    rates = [phase.updates_per_s for phase in phases]
    return {
        phases[i].flood: rates[i] / ((rates[i - 1] + rates[i + 1]) / 2)
        for i in range(1, len(phases) - 1, 2)
    }


def main() -> None:
    """Alternate calm phases and floods."""
    torch.set_num_threads(1)
    seconds, floods = float(sys.argv[1]), [Flood.parse(a) for a in sys.argv[2:]]
    ours, theirs = _FORK.Pipe()
    serving = _FORK.Process(target=_serve, args=(theirs,))
    serving.start()
    url, code = ours.recv()
    assert serving.pid is not None
    updates, errors = _FORK.Value("q", 0), _FORK.Value("q", 0)
    workers = [
        _FORK.Process(target=_work, args=(url, code, i, updates, errors), daemon=True)
        for i in range(WORKERS)
    ]
    for worker in workers:
        worker.start()
    _wait_for(updates, 2 * WORKERS)  # they have joined
    usage = _Usage(serving.pid)
    try:
        phases = [
            _phase(seconds, flood, (url, code), (updates, errors), usage)
            for flood in [None, *(each for f in floods for each in (f, None))]
        ]
    finally:
        for worker in workers:
            worker.kill()
        ours.send(None)
        serving.join(60)
    sys.stdout.write(json.dumps([asdict(phase) for phase in phases]))


@dataclass(frozen=True)
class _Usage:
    """What a process uses."""

    pid: int

    def seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kilobytes(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0])


def _phase(
    seconds: float,
    flood: Flood | None,
    link: tuple[str, str],
    counters: tuple[Synchronized[int], Synchronized[int]],
    usage: _Usage,
) -> Phase:
    made, flooding = _FORK.Value("q", 0), None
    if flood is not None:
        flooding = _FORK.Process(target=_flood, args=(link[0], flood, made))
        flooding.start()
        time.sleep(1.0)  # the server is full
    before = [counter.value for counter in (*counters, made)]
    began_s, began_cpu_s = time.monotonic(), usage.seconds()
    joined_s = _join(*link)
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    _wait_for(counters[0], before[0] + 1)
    took_s = time.monotonic() - began_s
    used_s = usage.seconds() - began_cpu_s
    files, kilobytes = usage.files(), usage.kilobytes()
    after = [counter.value for counter in (*counters, made)]
    if flooding is not None:
        flooding.kill()
        flooding.join()
        time.sleep(0.5)
    updates, errors, connections = (b - a for a, b in zip(before, after, strict=True))
    return Phase(
        flood=str(flood or ""),
        seconds=took_s,
        updates_per_s=updates / took_s,
        connections_per_s=connections / took_s,
        errors=errors,
        joined_s=joined_s,
        server_cpu=used_s / took_s,
        server_files=files,
        server_kb=kilobytes,
    )


def _wait_for(counter: Synchronized[int], least: int) -> None:
    """Wait until a counter has a value, at most for a time that no machine needs."""
    expires_s = time.monotonic() + _MOST_S
    while counter.value < least and time.monotonic() < expires_s:
        time.sleep(0.05)


def _join(url: str, code: str) -> float:
    began_s = time.monotonic()
    while time.monotonic() < began_s + _MOST_S:
        client = WorkerClient(url, code, verify=_TRUSTING, source="10.99.3.1")
        try:
            assert client.join().status_code == 200
            client.http.post("/v1/leave", headers=client.headers, json={})
        except httpx2.TransportError:
            continue
        finally:
            client.close()
        return time.monotonic() - began_s
    return float("inf")


def _end_with_parent() -> None:
    """Flood nobody when the measurement was killed."""
    kill_on_death_of_parent(os.getppid())


def _serve(pipe: Connection) -> None:
    _end_with_parent()
    with (
        tempfile.TemporaryDirectory() as out,
        server(
            Path(out), rounds=10**6, tls=True, every=10**6, host=SERVER, mode="async"
        ) as served,  # async: every update makes a version, whichever worker is late
    ):
        pipe.send((served.url, served.code))
        pipe.recv()


def _work(
    url: str,
    code: str,
    number: int,
    updates: Synchronized[int],
    errors: Synchronized[int],
) -> None:
    _end_with_parent()
    client = WorkerClient(url, code, verify=_TRUSTING, source=f"10.99.2.{number + 1}")
    while True:
        try:
            if not client.token:
                client.join()
            client.step()
            time.sleep(_COMPUTE_S)
            with updates.get_lock():
                updates.value += 1
        except httpx2.TransportError:
            with errors.get_lock():
                errors.value += 1


def _flood(url: str, flood: Flood, made: Synchronized[int]) -> None:
    _end_with_parent()
    host, port = url.removeprefix("https://").split(":")
    hello = _client_hello() if flood.kind == "hello" else b""
    selector = selectors.DefaultSelector()
    held: deque[tuple[float, socket.socket]] = deque()
    begun_s, count = time.monotonic(), 0
    while True:
        now_s = time.monotonic()
        due = int((now_s - begun_s) * flood.per_s * flood.addresses) - count
        for _ in range(min(due, 500)):
            line = socket.socket()
            line.setblocking(False)
            number = count % flood.addresses
            count += 1
            with suppress(OSError):
                line.bind((f"10.99.1.{number + 1}", 0))
                line.connect_ex((host, int(port)))
            held.append((now_s, line))
            if hello:
                selector.register(line, selectors.EVENT_WRITE)
            made.value += 1
        for key, _ in selector.select(_TICK_S):
            selector.unregister(key.fileobj)
            with suppress(OSError):
                key.fileobj.send(hello)  # type: ignore[union-attr]
        while held and held[0][0] < now_s - _HELD_S:
            _, line = held.popleft()
            with suppress(KeyError):
                selector.unregister(line)
            line.close()


def _client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = _TRUSTING.wrap_bio(ssl.MemoryBIO(), outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


if __name__ == "__main__":
    main()
