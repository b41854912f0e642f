"""The link mpi beside OpenMPI's own all_reduce and our TCP, in one job on one host.

    mpirun -n 4 python benchmarks/mpi_link.py

All three run in the same processes, in turn, so that they see the same machine. The
median of the rounds is printed, the slowest rank's, and how far below OpenMPI it is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from mpi4py import MPI

import ringleader

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
ROUNDS = {1 << 10: 100, 64 << 10: 50, 1 << 20: 20, 16 << 20: 7, 64 << 20: 5}


def main() -> None:
    """Print one line per size."""
    comm = MPI.COMM_WORLD
    over_mpi = ringleader.group(transport="mpi")
    over_tcp = ringleader.group(transport="tcp")

    def native(tensor: torch.Tensor) -> None:
        comm.Allreduce(MPI.IN_PLACE, tensor.numpy())

    runs: dict[str, Callable[[torch.Tensor], object]] = {
        "OpenMPI": native,
        "link mpi": over_mpi.all_reduce,
        "link tcp": over_tcp.all_reduce,
    }
    if comm.rank == 0:
        print(f"all_reduce of float32, {comm.size} ranks, torch {torch.__version__}")
        print(f"{'bytes':>10}" + "".join(f"{name:>14}" for name in runs))
    for num_bytes in SIZES:
        tensor = torch.ones(num_bytes // 4)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(ROUNDS[num_bytes] + 2):
            for name, run in runs.items():
                tensor.fill_(1.0)
                comm.Barrier()
                start_s = time.perf_counter()
                run(tensor)
                took_s = comm.allreduce(time.perf_counter() - start_s, op=MPI.MAX)
                assert tensor[-1] == comm.size
                if turn >= 2:
                    times[name].append(took_s)
        if comm.rank == 0:
            cells = [f"{statistics.median(t) * 1e3:11.3f} ms" for t in times.values()]
            print(f"{num_bytes:>10}" + "".join(cells), flush=True)
    over_tcp.close()
    over_mpi.close()


if __name__ == "__main__":
    main()
