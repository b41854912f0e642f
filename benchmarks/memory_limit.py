"""Measures what the memory of this machine allows collectives in shared memory.

    python benchmarks/memory_limit.py --processes 1,2,4,8,16

Processes with one thread each work at the same time, every one on a tensor of its own:
they add it to a small array that stays in their cache (reading), fill it from such an
array (writing), or copy it to another tensor. An all_reduce has to read and to write
the tensor of every rank once, so it cannot take less than both together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier

import numpy as np

MIB = 1 << 20
BLOCK = 32 << 10
"""Elements that stay in a cache: 128 KiB of float32."""
LIMIT_S = 60.0
NAMES = ("read", "write", "copy")


def tasks(count: int) -> dict[str, Callable[[], None]]:
    """Return what a process repeats, by name."""
    tensor, other = np.ones(count, np.float32), np.ones(count, np.float32)
    block = np.zeros(BLOCK, np.float32)
    starts = range(0, count, BLOCK)

    def read() -> None:
        for start in starts:
            np.add(tensor[start : start + BLOCK], block, block)

    def write() -> None:
        for start in starts:
            tensor[start : start + BLOCK] = block

    def copy() -> None:
        for start in starts:
            other[start : start + BLOCK] = tensor[start : start + BLOCK]

    return dict(zip(NAMES, (read, write, copy), strict=True))


def work(barrier: Barrier, count: int, rounds: int, results: object) -> None:
    """Time every task in rounds that all processes begin together."""
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for name, task in tasks(count).items():
        for _ in range(rounds):
            barrier.wait(LIMIT_S)
            start_s = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - start_s)
    results.put(times)  # type: ignore[attr-defined]


def measure(processes: int, mib: int, rounds: int) -> dict[str, float]:
    """Return the seconds of the slowest process, by name: medians of the rounds."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    arguments = (barrier, mib * MIB // 4 // BLOCK * BLOCK, rounds, results)
    started = [context.Process(target=work, args=arguments) for _ in range(processes)]
    try:
        for each in started:
            each.start()
        found = [results.get(timeout=LIMIT_S) for _ in started]
    finally:
        for each in started:
            each.join(5)
            each.kill()
    return {
        name: statistics.median(map(max, zip(*(f[name] for f in found), strict=True)))
        for name in NAMES
    }


def main() -> None:
    """Print a line for each number of processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", default="1,2", help="numbers of processes")
    parser.add_argument("--mib", type=int, default=64, help="size of a tensor")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for number in (int(text) for text in options.processes.split(",")):
        took_s = measure(number, options.mib, options.rounds)
        rates = ", ".join(
            f"{name} {options.mib * MIB / took_s[name] / 1e9:.1f}" for name in NAMES
        )
        limit_ms = (took_s["read"] + took_s["write"]) * 1e3
        print(
            f"{number} processes: GB/s of each: {rates}; "
            f"all_reduce of {options.mib} MiB between as many ranks: "
            f"at least {limit_ms:.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
