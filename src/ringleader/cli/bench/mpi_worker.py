"""One MPI rank of a benchmark, started by mpirun as ``python -m``.

It imports no torch: OpenMPI works on numpy arrays. Between its turns the rank sleeps in
``recv`` on its control socket, outside MPI, whose waits would spin.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from mpi4py import MPI

from ringleader.cli.bench.bench_rank import BenchRank, Buffers
from ringleader.cli.json_socket import Message, Report, serve
from ringleader.errors import ConfigError


class OpenMpiLibrary:
    """The collectives of COMM_WORLD."""

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        MPI.COMM_WORLD.Barrier()

    def prepare(
        self, operation: str, buffers: Buffers, algorithm: str | None
    ) -> Callable[[], object]:
        """See CollectiveLibrary."""
        if algorithm is not None:
            raise ConfigError("OpenMPI chooses its algorithm itself")
        comm = MPI.COMM_WORLD
        source, result = buffers
        match operation:
            case "all_reduce":
                return partial(comm.Allreduce, MPI.IN_PLACE, source)
            case "broadcast":
                return partial(comm.Bcast, source, 0)
            case "all_gather":
                return partial(comm.Allgather, source, result)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, source, result)
            case _:
                return partial(comm.Alltoall, source, result)


def main() -> None:
    """Handle tasks until the parent closes the socket."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", required=True)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    bench_rank = BenchRank(comm.rank, comm.size, {"mpi": OpenMpiLibrary()})

    def handle(task: Message, report: Report) -> Message:
        return bench_rank.handle(task)

    version = MPI.Get_library_version().split(",")[0].strip()
    serve(arguments.control, {"rank": comm.rank, "version": version}, handle)


if __name__ == "__main__":
    main()
