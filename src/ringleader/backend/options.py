"""Options of the backend that a program passes as ``pg_options``."""

from __future__ import annotations

from dataclasses import dataclass

from ringleader.collectives.config import CollectiveConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """``pg_options`` of ``init_process_group`` and ``new_group``.

    Fields that are None are read from the environment: RINGLEADER_TRANSPORT ("auto",
    "tcp", "mpi" or "grpc"), RINGLEADER_CONNECTIONS and RINGLEADER_INTRA_HOST.
    RINGLEADER_CREDENTIALS encrypts all connections.
    """

    transport: str | None = None
    """"auto" shares memory between ranks of one host, "tcp" never does, "mpi" sends MPI
    messages, "grpc" sends everything through rank 0."""
    connections: int | None = None
    """TCP connections per peer; more than one helps on long fat networks."""
    config: CollectiveConfig | None = None
    """The algorithms to use; torch's ``timeout`` replaces its ``timeout_s``."""
    intra_host: str | None = None
    """"nccl": ranks of one host all_reduce and broadcast CUDA tensors by NCCL, and one
    rank of each host communicates with the other hosts. Each rank needs its own GPU,
    and all ranks must pass CUDA tensors. "gloo" does the same for CPU tensors, where
    shared memory is faster. Off if neither this nor the environment names one."""
