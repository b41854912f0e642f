"""Rank, size and meeting place of a job, as its launcher sets them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ringleader.errors import ConfigError
from ringleader.settings import slurm
from ringleader.settings.numbers import number

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = (
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
)
_LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Number of ranks on this machine: set by Open MPI; by MPICH and Intel MPI (Hydra)."""
_NOT_SLURM = {*_RANK[:-1], "MASTER_ADDR"}
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


_FOLDER = "RINGLEADER_LAUNCH_FOLDER"
_STOPPING = "stopping"
_GROUP = "group"


def export_launch_folder(folder: Path) -> None:
    """Tell workers where their launcher notes what all of them shall know."""
    os.environ[_FOLDER] = str(folder)


def note_stopping() -> None:
    """Let the workers of this launcher know that it was told to end."""
    _note(_STOPPING)


def is_stopping() -> bool:
    """Return whether the launcher of this worker was told to end: Ctrl-C, or a stop."""
    return _is_noted(_STOPPING)


def note_group() -> None:
    """Let the launcher of this worker, if it has one, know that it is in a group."""
    _note(_GROUP)


def has_group() -> bool:
    """Return whether a worker of this launcher was in a group, or may have been."""
    is_blind = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
    return is_blind or _is_noted(_GROUP)


def _note(name: str) -> None:
    if folder := os.environ.get(_FOLDER):
        with contextlib.suppress(OSError):  # a full disk: only words depend on it
            Path(folder, name).touch()


def _is_noted(name: str) -> bool:
    folder = os.environ.get(_FOLDER, "")
    return bool(folder) and os.path.exists(os.path.join(folder, name))


def has_rank(env: Mapping[str, str] | None = None) -> bool:
    """Return whether this process is a rank that a launcher has started."""
    return any(name in (os.environ if env is None else env) for name in _RANK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Rank and rendezvous of a job, as torchrun, mpirun or Slurm set them."""

    rank: int
    size: int
    master: str
    """Address of the store; empty if only MPI knows where rank 0 is."""
    port: int
    store_exists: bool
    """True if the launcher runs the store at ``master``; nobody else may open it."""
    attempt: str
    """Changes when the launcher restarts the job, so that ranks of an earlier
    attempt are not met again."""
    directory: str = ""
    """Directory of the job in which the ranks meet, instead of at ``port``."""
    asks_mpi: bool = False
    """True if rank 0 can tell the others by MPI where they meet."""
    local_rank: int | None = None
    """Rank among the processes of this machine, if the launcher says it."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read the variables; ConfigError names what is missing."""
        env = os.environ if env is None else env
        rank, size = _first(env, _RANK), _first(env, _SIZE)
        if slurm.is_batch_script(env) and size != 1 and not env.keys() & _NOT_SLURM:
            text = "this process belongs to the script of a Slurm job, not to its tasks"
            raise ConfigError(f"{text}; start it with srun")
        directory = _mpi_directory(env, size)
        asks_mpi = _is_mpi(env) and not directory and "MASTER_ADDR" not in env
        is_one_machine = bool(directory) or (asks_mpi and _is_one_machine(env, size))
        is_here = size == 1 or is_one_machine
        master, port = _master(env, is_here=is_here)
        missing = [
            name
            for name, value in (
                ("RANK", rank),
                ("WORLD_SIZE", size),
                ("MASTER_ADDR", master or (asks_mpi or None)),
                ("MASTER_PORT", 0 if is_here or asks_mpi else port),
            )
            if value is None
        ]
        if missing or rank is None or size is None:
            text = f"not set in the environment: {', '.join(missing)}"
            raise ConfigError(f"{text}; use a launcher, or pass peers= and rank=")
        if size < 1 or not 0 <= rank < size:
            raise ConfigError(
                f"environment variables: no rank {rank} in a world of {size}"
            )
        agent = env.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
        # Machines that joined later count fewer restarts; the round is equal on all.
        attempt = env.get("RINGLEADER_ROUND") or env.get(
            "TORCHELASTIC_RESTART_COUNT", "0"
        )
        return cls(
            rank=rank,
            size=size,
            master=master,
            port=port or 0,
            store_exists=agent,
            attempt=attempt,
            directory=directory,
            asks_mpi=asks_mpi and size != 1,
            local_rank=_first(env, _LOCAL_RANK),
        )


def local_size(env: Mapping[str, str] | None = None) -> int:
    """Return how many ranks the launcher started on this machine; 1 if unknown."""
    env = os.environ if env is None else env
    return max(1, _first(env, ("LOCAL_WORLD_SIZE", *_LOCAL_SIZE)) or 1)


def lacks_torch_variables(env: Mapping[str, str] | None = None) -> bool:
    """Return whether mpirun or srun started this process and ``env://`` lacks
    variables that ``Launch`` can do without."""
    env = os.environ if env is None else env
    is_known = bool(env.keys() & {*_RANK[1:]})
    return is_known and not env.keys() >= {*_TORCH}


def _is_mpi(env: Mapping[str, str]) -> bool:
    """Return whether a launcher of MPI started this process; srun is none."""
    is_by_srun = slurm.is_step(env) and "MPI_LOCALRANKID" not in env
    return "OMPI_COMM_WORLD_RANK" in env or ("PMI_RANK" in env and not is_by_srun)


def _is_one_machine(env: Mapping[str, str], size: int | None) -> bool:
    return any(env.get(name) == str(size) for name in _LOCAL_SIZE)


def _master(env: Mapping[str, str], *, is_here: bool) -> tuple[str, int | None]:
    """Return address and port of the store, as far as they are known."""
    port = number(env, "MASTER_PORT") if "MASTER_PORT" in env else None
    if is_here:
        return env.get("MASTER_ADDR", "127.0.0.1"), port
    if "SLURM_JOB_ID" in env and "MASTER_ADDR" not in env:
        return slurm.master(env), slurm.port(env) if port is None else port
    return env.get("MASTER_ADDR", ""), port


def _mpi_directory(env: Mapping[str, str], size: int | None) -> str:
    """Return the job's directory of an mpirun whose ranks are all on this machine.

    Empty if the user has said where the ranks meet.
    """
    if "MASTER_ADDR" in env or "MASTER_PORT" in env or size in (None, 1):
        return ""
    if not _is_one_machine(env, size):
        return ""
    return os.path.dirname(env.get("OMPI_FILE_LOCATION", ""))


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in env:
            return number(env, name)
    return None
