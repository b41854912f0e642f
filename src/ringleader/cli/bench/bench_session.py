"""BenchSession: the processes of a benchmark for one number of ranks.

Torch workers and an MPI job exist for the whole session and take turns; those without a
request sleep.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringleader.cli.bench.bench_plan import TITLES, BenchCell, Competitor
from ringleader.cli.json_socket import Message
from ringleader.cli.worker_pool import WorkerPool
from ringleader.errors import ConfigError, PeerFailed, RingleaderError
from ringleader.transport.free_ports import free_ports

_START_S = 120.0
"""Limit for the start; importing torch in 8 processes on 2 cores takes 20 s."""

_OPEN_S = 60.0
_TURN_S = 300.0
"""Limit for a batch; above the libraries' own timeouts, whose errors say more."""

_FIRST_PORT = 29400  # in a new namespace all ports are free


@dataclass(frozen=True, slots=True)
class RankLocation:
    """Host of one rank: its address, and how to start a process there."""

    address: str = "127.0.0.1"
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    interface: str | None = None
    """Network interface for Gloo, None for the loopback. Without it Gloo resolves the
    host name, which may be unknown in a namespace or container."""


@dataclass(slots=True)
class BenchSession:
    """Worker pools by library, and the reasons why libraries are missing."""

    ranks: int
    pools: dict[str, WorkerPool] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def prepare(self, cell: BenchCell) -> None:
        """Let every rank of every pool allocate the tensors of ``cell``."""
        task: Message = {
            "do": "prepare",
            "operation": cell.operation,
            "bytes": cell.total_bytes,
        }
        for pool in self.distinct_pools():
            pool.request(task, _TURN_S)

    def check(self, competitor: Competitor) -> str | None:
        """Verify one call on all ranks; return why the competitor declines, or None."""
        replies = self._request("check", competitor)
        refusals = [str(a["refused"]) for a in replies if "refused" in a]
        return refusals[0] if refusals else None

    def batch(self, competitor: Competitor, iterations: int) -> float:
        """Run a batch and return the seconds per call on its slowest rank."""
        replies = self._request("batch", competitor, iterations)
        slowest_s = max(float(str(reply["seconds"])) for reply in replies)
        return slowest_s / iterations

    def distinct_pools(self) -> list[WorkerPool]:
        """Return each pool once, although it may run several libraries."""
        return list({id(pool): pool for pool in self.pools.values()}.values())

    def _request(
        self, do: str, competitor: Competitor, iterations: int = 1
    ) -> Sequence[Message]:
        task: Message = {
            "do": do,
            "engine": competitor.library,
            "algorithm": competitor.algorithm,
            "iterations": iterations,
        }
        try:
            return self.pools[competitor.library].request(task, _TURN_S)
        except RingleaderError as exc:
            raise PeerFailed(competitor.title, str(exc)) from exc


@contextmanager
def bench_session(
    libraries: Sequence[str], locations: Sequence[RankLocation]
) -> Iterator[BenchSession]:
    """Start one worker per location and an MPI job; end all of them on exit."""
    with ExitStack() as stack:
        session = BenchSession(len(locations))
        mpi = _start_mpi(stack, session) if "mpi" in libraries else None
        in_torch = [library for library in libraries if library != "mpi"]
        if in_torch:
            pool = _start_torch(stack, locations)
            session.versions["torch"] = str(pool.wait_connected(_START_S)[0]["version"])
            for library in in_torch:
                _open_library(library, pool, locations, session)
        if mpi is not None:
            _connect_mpi(mpi, session)
        yield session


def _start_torch(stack: ExitStack, locations: Sequence[RankLocation]) -> WorkerPool:
    pool = stack.enter_context(WorkerPool("torch worker", len(locations)))
    for rank, location in enumerate(locations):
        module = [sys.executable, "-P", "-m", "ringleader.cli.bench.torch_worker"]
        options = ["--rank", str(rank), "--size", str(len(locations))]
        pool.start([*module, "--control", pool.address, *options], location.popen)
    return pool


def _open_library(
    library: str,
    pool: WorkerPool,
    locations: Sequence[RankLocation],
    session: BenchSession,
) -> None:
    """Open a library on all ranks; reject a group that fell back to another link."""
    replies = pool.request(_open_task(library, pool, locations), _OPEN_S)
    unexpected = {str(reply["links"]) for reply in replies} - {"", library}
    if unexpected:
        session.missing[library] = (
            f"its ranks are linked by {', '.join(sorted(unexpected))}"
        )
    else:
        session.pools[library] = pool


def _open_task(
    library: str, pool: WorkerPool, locations: Sequence[RankLocation]
) -> Message:
    if library == "gloo":
        store = (pool.directory / "gloo-store").as_uri()
        interface = locations[0].interface
        return {"do": "open", "engine": library, "store": store, "interface": interface}
    return {"do": "open", "engine": library, "peers": _peers(library, locations)}


def _peers(library: str, locations: Sequence[RankLocation]) -> list[str]:
    if locations[0].interface is None:
        return [f"127.0.0.1:{port}" for port in free_ports(len(locations))]
    port = _FIRST_PORT + list(TITLES).index(library)
    return [f"{location.address}:{port}" for location in locations]


def _start_mpi(stack: ExitStack, session: BenchSession) -> WorkerPool | None:
    try:
        mpirun = _find_mpirun()
    except ConfigError as exc:
        session.missing["mpi"] = str(exc)
        return None
    pool = stack.enter_context(WorkerPool("mpirun", session.ranks))
    job = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(session.ranks)]
    module = [sys.executable, "-P", "-m", "ringleader.cli.bench.mpi_worker"]
    pool.start([*job, *module, "--control", pool.address])
    return pool


def _connect_mpi(pool: WorkerPool, session: BenchSession) -> None:
    """Wait for the MPI job; if it does not start, record its error as the reason."""
    try:
        session.versions["mpi"] = str(pool.wait_connected(_START_S)[0]["version"])
    except RingleaderError as exc:
        session.missing["mpi"] = str(exc)
    else:
        session.pools["mpi"] = pool


def _find_mpirun() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError("mpi4py is not installed; pip install 'ringleader[bench]'")
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise ConfigError("mpirun was not found; pip install 'ringleader[bench]'")
    return path
