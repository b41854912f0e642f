"""One torch rank of a benchmark: ``python -m ringleader.cli.bench.torch_worker``.

It holds all libraries at once, so that they take turns in the same process on the same
tensors; those that are not measured sleep.
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
    """Handle tasks until the parent closes the socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the ranks already use all cores
    rank, size = arguments.rank, arguments.size
    libraries: dict[str, CollectiveLibrary] = {}
    bench_rank = BenchRank(rank, size, libraries)

    def handle(task: Message, report: Report) -> Message:
        if task.get("do") != "open":
            return bench_rank.handle(task)
        name = str(task["engine"])
        libraries[name] = library = _open(task, rank, size)
        return {
            "links": library.links if isinstance(library, RingleaderLibrary) else ""
        }

    serve(arguments.control, {"rank": rank, "version": torch.__version__}, handle)


def _open(task: Message, rank: int, size: int) -> GlooLibrary | RingleaderLibrary:
    match task:
        case {"engine": "gloo", "store": str(url), "interface": interface}:
            os.environ["GLOO_SOCKET_IFNAME"] = str(interface or _loopback())
            return GlooLibrary.connect(url, rank, size)
        case {"engine": "shm" | "tcp" as transport, "peers": [*peers]}:
            kind = "auto" if transport == "shm" else "tcp"
            names = [str(peer) for peer in peers]
            config = CollectiveConfig(timeout_s=TIMEOUT_S)
            # Hosts of a simulated network; Gloo and OpenMPI do not encrypt either.
            os.environ["RINGLEADER_PLAINTEXT"] = "1"
            return RingleaderLibrary(group(names, rank, transport=kind, config=config))
        case _:
            raise ConfigError(f"bench worker: cannot open {task}")


def _loopback() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0])


if __name__ == "__main__":
    main()
