"""One torch rank of a benchmark: ``python -m ringleader.cli.bench.torch_worker``.

It holds every contender at once, so that they take turns in the same process on the
same tensors; those that wait for their turn sleep.
"""

from __future__ import annotations

import argparse
import os
import socket

import torch

from ringleader.cli.bench.bench_rank import BenchRank, CollectiveLibrary
from ringleader.cli.bench.gloo_library import TIMEOUT_S, GlooLibrary
from ringleader.cli.bench.ringleader_library import RingleaderLibrary
from ringleader.cli.json_socket import Message, Report, serve
from ringleader.collectives.config import CollectiveConfig
from ringleader.errors import ConfigError
from ringleader.groups.formation import group


def main() -> None:
    """Serve the parent until it closes the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # ranks fill the cores; threads would fight over them
    rank, size = arguments.rank, arguments.size
    engines: dict[str, CollectiveLibrary] = {}
    bench_rank = BenchRank(rank, size, engines)

    def handle(task: Message, report: Report) -> Message:
        if task.get("do") != "open":
            return bench_rank.handle(task)
        name = str(task["engine"])
        engines[name] = engine = _open(task, rank, size)
        return {"links": engine.links if isinstance(engine, RingleaderLibrary) else ""}

    serve(arguments.control, {"rank": rank, "version": torch.__version__}, handle)


def _open(task: Message, rank: int, size: int) -> GlooLibrary | RingleaderLibrary:
    match task:
        case {"engine": "gloo", "store": str(url), "interface": interface}:
            os.environ["GLOO_SOCKET_IFNAME"] = str(interface or _loopback())
            return GlooLibrary(url, rank, size)
        case {"engine": "shm" | "tcp" as transport, "peers": [*peers]}:
            kind = "auto" if transport == "shm" else "tcp"
            names = [str(peer) for peer in peers]
            config = CollectiveConfig(timeout_s=TIMEOUT_S)
            return RingleaderLibrary(group(names, rank, transport=kind, config=config))
        case _:
            raise ConfigError(f"bench worker: cannot open {task}")


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0])


if __name__ == "__main__":
    main()
