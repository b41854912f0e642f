"""The processes of a benchmark at one number of ranks: torch workers and an MPI job.

Both exist for the whole session and take turns; whoever is not asked sleeps.
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

from ringleader.cli.bench.bench_plan import TITLES, Cell, Competitor
from ringleader.cli.json_socket import Message
from ringleader.cli.worker_pool import WorkerPool
from ringleader.errors import ConfigError, RingleaderError
from ringleader.transport.free_ports import free_ports

_START_S = 120.0
"""Importing torch in eight processes on two cores takes twenty seconds."""

_OPEN_S = 60.0
_TURN_S = 300.0
"""Bound on a batch. Above the engines' own limits, so that theirs explain first."""

_FIRST_PORT = 29400  # in a namespace of our own every port is free


@dataclass(frozen=True, slots=True)
class RankLocation:
    """Where one rank runs: its address, and how to start a process there."""

    address: str = "127.0.0.1"
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    interface: str | None = None
    """The network interface for Gloo, which would else resolve the host's name, and a
    namespace or a container may not know that; None is the loopback."""


@dataclass(slots=True)
class BenchSession:
    """Open crews, and why an engine is missing if it is."""

    ranks: int
    pools: dict[str, WorkerPool] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> None:
        """Have every rank of every crew allocate the tensors of ``cell``."""
        task: Message = {
            "do": "prepare",
            "operation": cell.operation,
            "bytes": cell.total_bytes,
        }
        for pool in self.distinct_pools():
            pool.request(task, _TURN_S)

    def check(self, competitor: Competitor) -> str | None:
        """Prove one call exact on every rank; a reason if the contender declines."""
        answers = self._ask("check", competitor)
        refusals = [str(a["refused"]) for a in answers if "refused" in a]
        return refusals[0] if refusals else None

    def batch(self, competitor: Competitor, iterations: int) -> float:
        """Seconds per call of one timed batch, on its slowest rank."""
        answers = self._ask("batch", competitor, iterations)
        slowest_s = max(float(str(answer["seconds"])) for answer in answers)
        return slowest_s / iterations

    def distinct_pools(self) -> list[WorkerPool]:
        """Each crew once, although one may hold several engines."""
        return list({id(pool): pool for pool in self.pools.values()}.values())

    def _ask(self, do: str, who: Competitor, iterations: int = 1) -> Sequence[Message]:
        task: Message = {
            "do": do,
            "engine": who.engine,
            "algorithm": who.algorithm,
            "iterations": iterations,
        }
        try:
            return self.pools[who.engine].request(task, _TURN_S)
        except RingleaderError as exc:
            raise RingleaderError(f"{who.title}: {exc}") from exc


@contextmanager
def session(
    engines: Sequence[str], locations: Sequence[RankLocation]
) -> Iterator[BenchSession]:
    """Start one worker per place, and an MPI job beside them; end all of them."""
    with ExitStack() as stack:
        found = BenchSession(len(locations))
        mpi = _start_mpi(stack, found) if "mpi" in engines else None
        in_torch = [engine for engine in engines if engine != "mpi"]
        if in_torch:
            pool = _start_torch(stack, locations)
            found.versions["torch"] = str(pool.wait_connected(_START_S)[0]["version"])
            for engine in in_torch:
                _open_engine(engine, pool, locations, found)
        if mpi is not None:
            _connect_mpi(mpi, found)
        yield found


def _start_torch(stack: ExitStack, locations: Sequence[RankLocation]) -> WorkerPool:
    pool = stack.enter_context(WorkerPool("torch worker", len(locations)))
    for rank, location in enumerate(locations):
        module = [sys.executable, "-m", "ringleader.cli.bench.torch_worker"]
        who = ["--rank", str(rank), "--size", str(len(locations))]
        pool.start([*module, "--control", pool.address, *who], location.popen)
    return pool


def _open_engine(
    engine: str,
    pool: WorkerPool,
    locations: Sequence[RankLocation],
    found: BenchSession,
) -> None:
    """A group that fell back to TCP must not be reported as shared memory."""
    answers = pool.request(_opening(engine, pool, locations), _OPEN_S)
    strange = {str(answer["links"]) for answer in answers} - {"", engine}
    if strange:
        found.missing[engine] = f"its ranks are linked by {', '.join(sorted(strange))}"
    else:
        found.pools[engine] = pool


def _opening(
    engine: str, pool: WorkerPool, locations: Sequence[RankLocation]
) -> Message:
    if engine == "gloo":
        store = (pool.directory / "gloo-store").as_uri()
        interface = locations[0].interface
        return {"do": "open", "engine": engine, "store": store, "interface": interface}
    return {"do": "open", "engine": engine, "peers": _peers(engine, locations)}


def _peers(engine: str, locations: Sequence[RankLocation]) -> list[str]:
    if locations[0].interface is None:
        return [f"127.0.0.1:{port}" for port in free_ports(len(locations))]
    port = _FIRST_PORT + list(TITLES).index(engine)
    return [f"{location.address}:{port}" for location in locations]


def _start_mpi(stack: ExitStack, found: BenchSession) -> WorkerPool | None:
    try:
        mpirun = _find_mpirun()
    except ConfigError as exc:
        found.missing["mpi"] = str(exc)
        return None
    pool = stack.enter_context(WorkerPool("mpirun", found.ranks))
    job = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(found.ranks)]
    module = [sys.executable, "-m", "ringleader.cli.bench.mpi_worker"]
    pool.start([*job, *module, "--control", pool.address])
    return pool


def _connect_mpi(pool: WorkerPool, found: BenchSession) -> None:
    """An MPI that is installed but does not start is missing too, with its words."""
    try:
        found.versions["mpi"] = str(pool.wait_connected(_START_S)[0]["version"])
    except RingleaderError as exc:
        found.missing["mpi"] = str(exc)
    else:
        found.pools["mpi"] = pool


def _find_mpirun() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError("mpi4py is not installed; pip install 'ringleader[bench]'")
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise ConfigError("no mpirun here; pip install 'ringleader[bench]'")
    return path
