"""Compares the hierarchy with the flat ring and with Gloo, several ranks per host.

Two hosts of a virtual LAN (root) hold two ranks each, or three and one. Every rank is
in a Gloo group and in a group of ours, and all candidates take turns on the same
tensors, so that a disturbance of the machine affects all. Every result is compared
with the sum in float64.

    .venv/bin/python benchmarks/hierarchy.py --json benchmarks/results/FILE.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    import ringleader

MIB = 1 << 20
CANDIDATES: dict[str, dict[str, str]] = {
    "gloo": {},
    "ring": {"algorithm": "ring"},
    "hierarchy": {"algorithm": "hierarchy"},
    "chosen": {},
    "int8, hierarchy": {"algorithm": "hierarchy", "codec": "int8"},
    "int8, ring": {"algorithm": "ring", "codec": "int8"},
    "int8, chosen": {"codec": "int8"},
}
"""Name -> arguments of all_reduce; the first one is Gloo, "chosen" is the default."""
LAYOUTS = ("2+2", "3+1")
LIMITS = {
    ("hierarchy", "ring"): 1.4,
    ("hierarchy", "gloo"): 1.4,
    ("chosen", "ring"): 1.4,
    ("chosen", "gloo"): 1.4,
    ("int8, hierarchy", "gloo"): 3.0,
    ("int8, chosen", "gloo"): 3.0,
}
"""(candidate, compared with) -> times faster that it has to be."""
EXACT_BOUND = 2.0**-20
"""Error of a float32 sum of four normal numbers, relative to the largest input."""
INT8_BOUND = 0.05
"""The same with two encodings of sums of four numbers, each off by up to 1/254 of the
largest value of a block."""


def main() -> None:
    """Measure every layout in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--rate", default="1gbit", help="of the LAN, in tc's units")
    parser.add_argument("--size", type=float, default=64, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    found = {
        layout: measure(layout, options.rate, options.size, options.rounds)
        for layout in options.layout or LAYOUTS
    }
    for layout, result in found.items():
        show(layout, result)
    if options.json:
        from machine import describe

        text = json.dumps({"machine": describe(), "rate": options.rate, **found})
        options.json.write_text(text + "\n")


def measure(layout: str, rate: str, size: float, rounds: int) -> dict[str, Any]:
    """Return the rounds: the slowest rank of each, and the load of the machine."""
    from ringleader.simulation.lan import lan

    counts = [int(count) for count in layout.split("+")]
    with lan(hosts=len(counts), rate=rate) as net:
        places = [h for h, n in zip(net.hosts, counts, strict=True) for _ in range(n)]
        job = {"store": f"tcp://{places[0].address}:5000", "size": size}
        workers = [
            host.popen(
                [
                    sys.executable,
                    __file__,
                    "--worker",
                    json.dumps(
                        {
                            **job,
                            "rank": rank,
                            "ranks": len(places),
                            "address": host.address,
                            "rounds": rounds,
                        }
                    ),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(places)
        ]
        outputs = [worker.communicate(timeout=900)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            sys.exit(f"{layout}: a rank failed, see above")
    ranks = [json.loads(text) for text in outputs]
    for name in CANDIDATES:
        assert len({rank["checksums"][name] for rank in ranks}) == 1, f"{name}: unequal"
    seconds = {
        name: [max(took) for took in zip(*(r["s"][name] for r in ranks), strict=True)]
        for name in CANDIDATES
    }
    cpu = {name: sum(r["cpu_s"][name] for r in ranks) for name in CANDIDATES}
    return {
        "load": os.getloadavg()[0],
        "MiB": size,
        "s": seconds,
        "cpu_s": cpu,
        **{key: ranks[0][key] for key in ("errors", "chosen")},
    }


def work(job: dict[str, Any]) -> None:
    """Run one rank: both groups, all candidates in turn."""
    import torch
    import torch.distributed as dist

    from ringleader.backend.process_group import RingleaderGroup

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    os.environ["RINGLEADER_ADDRESS"] = job["address"]
    os.environ["RINGLEADER_PLAINTEXT"] = "1"
    rank, ranks, limit = job["rank"], job["ranks"], timedelta(seconds=120)
    dist.init_process_group(
        "gloo",
        init_method=job["store"],
        rank=rank,
        world_size=ranks,
        timeout=limit,
    )
    ours = dist.new_group(backend="ringleader", timeout=limit)
    backend = ours._get_backend(torch.device("cpu"))
    assert isinstance(backend, RingleaderGroup)
    count = int(job["size"] * MIB) // 4
    inputs = [
        torch.randn(count, generator=torch.Generator().manual_seed(r))
        for r in range(ranks)
    ]
    exact = torch.zeros(count, dtype=torch.float64)
    for each in inputs:
        exact += each
    print(json.dumps(rounds(job["rounds"], backend.group, inputs[rank], exact)))
    backend.group.barrier()
    dist.destroy_process_group()


def rounds(
    count: int, group: ringleader.Group, source: torch.Tensor, exact: torch.Tensor
) -> dict[str, Any]:
    """Time ``count`` rounds of all candidates, after one that is checked."""
    import torch.distributed as dist

    tensor = source.clone()
    seconds: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    cpu_s = dict.fromkeys(CANDIDATES, 0.0)
    errors, checksums = {}, {}
    largest = float(source.abs().max())
    for turn in range(count + 1):
        for name, arguments in CANDIDATES.items():
            tensor.copy_(source)
            group.barrier()
            started_cpu_s, started_s = time.process_time(), time.perf_counter()
            if name == "gloo":
                dist.all_reduce(tensor)
            else:
                group.all_reduce(tensor, **arguments)
            took_s = time.perf_counter() - started_s
            if turn:
                seconds[name].append(took_s)
                cpu_s[name] += (time.process_time() - started_cpu_s) / count
                continue
            errors[name] = float((tensor - exact).abs().max()) / largest
            bound = INT8_BOUND if "int8" in name else EXACT_BOUND
            assert errors[name] < bound, f"{name}: off by {errors[name]}"
            checksums[name] = zlib.crc32(tensor.numpy().view("uint8"))
    return {
        "s": seconds,
        "cpu_s": cpu_s,
        "errors": errors,
        "checksums": checksums,
        "chosen": group.choice("all_reduce", source.nbytes),
    }


def show(layout: str, result: dict[str, Any]) -> None:
    """Print a table of medians; ratios are medians over rounds."""
    print(f"\n{layout} ranks, {result['MiB']:g} MiB, load {result['load']:.1f}")
    print(f"{'all_reduce':16} {'ms':>7} {'x ring':>7} {'x Gloo':>7} {'cpu ms':>7}")
    for name, seconds in result["s"].items():
        ratios = {peer: faster(result, name, peer) for peer in ("ring", "gloo")}
        row = " ".join(f"{ratio:7.2f}" for ratio in ratios.values())
        median_ms = statistics.median(seconds) * 1e3
        verdicts = [
            f"{'ok' if ratios[peer] >= LIMITS[name, peer] else 'BELOW'} "
            f"{LIMITS[name, peer]}x {peer}"
            for peer in ratios
            if (name, peer) in LIMITS
        ]
        cpu_ms = result["cpu_s"][name] * 1e3
        print(f"{name:16} {median_ms:7.0f} {row} {cpu_ms:7.0f}  {', '.join(verdicts)}")


def faster(result: dict[str, Any], name: str, peer: str) -> float:
    """Return how many times faster ``name`` is than ``peer``, in the median round."""
    pairs = zip(result["s"][peer], result["s"][name], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


if __name__ == "__main__":
    main()
