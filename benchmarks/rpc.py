"""Measures RPC between two processes of one machine: small calls and large tensors.

Calls carry 1 KB there and 1 KB back. They are made one after the other by one thread,
by several threads, and by one thread that does not wait for each. A tensor of 64 MiB
travels as an argument and as a result, alternately with an all_reduce of the same size
over the same kind of link, whose rate is bytes of the tensor per second, too.

    .venv/bin/python benchmarks/rpc.py --json benchmarks/results/rpc-DATE.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
LINKS = ("tcp", "tls", "shm")
CALLS_PER_S = 3000
"""What must hold for calls of 1 KB, on every link."""
RATIO = 0.6
"""What must hold for the rate of a tensor, relative to all_reduce, over TCP and TLS."""
PAYLOAD = bytes(1024)
THREADS = 4
WINDOW = 64
"""Calls without an answer, in the pipelined measurement."""


def main() -> None:
    """Measure over every kind of link and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--link", choices=LINKS, action="append")
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--mib", type=int, default=64, help="size of the tensor")
    parser.add_argument("--rounds", type=int, default=15, help="of the tensor")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found = {
        link: measure(link, options.seconds, options.mib, options.rounds)
        for link in options.link or LINKS
    }
    show(found)
    if options.json:
        text = json.dumps({"machine": machine(), "mib": options.mib, **found}, indent=1)
        options.json.write_text(text + "\n")


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def measure(link: str, seconds: float, mib: int, rounds: int) -> dict[str, Any]:
    """Return what rank 0 measured, and the load of the machine."""
    from ringleader.identity.cluster_secret import ClusterSecret, Secret
    from ringleader.identity.credentials import Credentials
    from ringleader.identity.node_key import NodeKey
    from ringleader.transport.free_ports import free_ports

    with tempfile.TemporaryDirectory() as home:
        secret = ClusterSecret(root=Secret(os.urandom(32)))
        Credentials.issue(secret, NodeKey.ephemeral()).to_file(Path(home) / "node")
        env = dict(os.environ, RINGLEADER_CREDENTIALS="")
        if link == "tls":
            env["RINGLEADER_CREDENTIALS"] = str(Path(home) / "node")
        peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
        job = {"peers": peers, "link": link, "seconds": seconds, "mib": mib}
        workers = [
            subprocess.Popen(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    json.dumps({**job, "rank": rank, "rounds": rounds}),
                ],
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(2)
        ]
        outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"{link}: a rank failed, see above")
    return {"load": os.getloadavg()[0], **json.loads(outputs[0])}


def work(job: dict[str, Any]) -> None:
    """Run one rank."""
    import torch

    import ringleader
    from ringleader import rpc

    torch.set_num_threads(1)
    kept = torch.ones(job["mib"] * MIB // 4)
    rpc.register(lambda data: data, name="echo")
    rpc.register(lambda tensor: None, name="take")
    rpc.register(lambda: kept, name="give")
    transport = "auto" if job["link"] == "shm" else "tcp"
    with ringleader.group(job["peers"], job["rank"], transport=transport) as group:
        rpc.start(group)
        results: dict[str, Any] = {"kind": next(iter(group.links().values()))}
        if job["rank"] == 0:
            results["calls_per_s"] = {
                "sequential": sequential(job["seconds"]),
                "best tenth": best_tenth(job["seconds"]),
                f"{THREADS} threads": threaded(job["seconds"]),
                f"{WINDOW} at once": pipelined(job["seconds"]),
            }
        rows: dict[str, list[float]] = {"all_reduce": [], "argument": [], "result": []}
        for turn in range(job["rounds"] + 1):
            group.barrier()
            began_s = time.perf_counter()
            group.all_reduce(kept, op="mean")
            took = {"all_reduce": time.perf_counter() - began_s}
            if job["rank"] == 0:
                took["argument"] = timed(lambda: rpc.rpc_sync(1, "take", (kept,)))
                took["result"] = timed(lambda: rpc.rpc_sync(1, "give"))
            for name, seconds in took.items():
                if turn:  # the first round warms up
                    rows[name].append(seconds)
        assert bool((kept == 1).all())
        if job["rank"] == 0:
            results["tensor_s"] = rows
            print(json.dumps(results))
        rpc.shutdown()


def timed(body: Callable[[], object]) -> float:
    """Return the seconds that ``body`` takes."""
    began_s = time.perf_counter()
    body()
    return time.perf_counter() - began_s


def sequential(seconds: float) -> float:
    """Return the calls per second of one thread that waits for each."""
    from ringleader import rpc

    for _ in range(200):
        assert rpc.rpc_sync(1, "echo", (PAYLOAD,)) == PAYLOAD
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        rpc.rpc_sync(1, "echo", (PAYLOAD,))
        count += 1
    return count / (time.perf_counter() - began_s)


def best_tenth(seconds: float) -> float:
    """Return the rate that the best tenth of windows of 20 such calls reaches.

    On a busy machine those are the windows in which the ranks had its cores.
    """
    from ringleader import rpc

    rates: list[float] = []
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        took_s = timed(lambda: [rpc.rpc_sync(1, "echo", (PAYLOAD,)) for _ in range(20)])
        rates.append(20 / took_s)
    return statistics.quantiles(rates, n=10)[-1]


def threaded(seconds: float) -> float:
    """Return the calls per second of several such threads together."""
    rates: list[float] = []
    threads = [
        threading.Thread(target=lambda: rates.append(sequential(seconds)))
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def pipelined(seconds: float) -> float:
    """Return the calls per second of one thread with several calls on the way."""
    from ringleader import rpc

    pending: deque[rpc.Future] = deque()
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < seconds:
        pending.append(rpc.rpc_async(1, "echo", (PAYLOAD,)))
        if len(pending) == WINDOW:
            pending.popleft().wait()
            count += 1
    while pending:
        pending.popleft().wait()
        count += 1
    return count / (time.perf_counter() - began_s)


def show(found: dict[str, Any]) -> None:
    """Print medians; ratios are medians over pairs of a transfer and an all_reduce."""
    for link, result in found.items():
        print(f"{link} ({result['kind']}), load {result['load']:.1f}")
        for how, rate in result["calls_per_s"].items():
            verdict = "ok" if rate >= CALLS_PER_S else f"BELOW {CALLS_PER_S}"
            print(f"  {how:12} {rate:8.0f} calls of 1 KB per second  {verdict}")
        rows = result["tensor_s"]
        base = statistics.median(rows["all_reduce"])
        print(f"  all_reduce   {base * 1e3:8.1f} ms")
        for how in ("argument", "result"):
            pairs = zip(rows["all_reduce"], rows[how], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            verdict = "ok" if ratio >= RATIO else f"BELOW {RATIO:.0%}"
            if link == "shm":
                verdict = "(no bar)"
            median = statistics.median(rows[how])
            print(f"  {how:12} {median * 1e3:8.1f} ms  {ratio:.0%} of it  {verdict}")


if __name__ == "__main__":
    main()
