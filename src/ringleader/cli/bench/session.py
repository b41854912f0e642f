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

from ringleader.cli.bench.plan import TITLES, Cell, Contender
from ringleader.cli.crew import Crew
from ringleader.cli.line import Message
from ringleader.errors import ConfigError, RingleaderError
from ringleader.transport.ports import free_ports

_START_S = 120.0
"""Importing torch in eight processes on two cores takes twenty seconds."""

_OPEN_S = 60.0
_TURN_S = 300.0
"""Bound on a batch. Above the engines' own limits, so that theirs explain first."""

_FIRST_PORT = 29400  # in a namespace of our own every port is free


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs: its address, and how to start a process there."""

    address: str = "127.0.0.1"
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    interface: str | None = None
    """The network interface for Gloo, which would else resolve the host's name, and a
    namespace or a container may not know that; None is the loopback."""


@dataclass(slots=True)
class Session:
    """Open crews, and why an engine is missing if it is."""

    ranks: int
    crews: dict[str, Crew] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def prepare(self, cell: Cell) -> None:
        """Have every rank of every crew allocate the tensors of ``cell``."""
        task: Message = {
            "do": "prepare",
            "operation": cell.operation,
            "bytes": cell.total_bytes,
        }
        for crew in self.distinct_crews():
            crew.ask(task, _TURN_S)

    def check(self, contender: Contender) -> str | None:
        """Prove one call exact on every rank; a reason if the contender declines."""
        answers = self._ask("check", contender)
        refusals = [str(a["refused"]) for a in answers if "refused" in a]
        return refusals[0] if refusals else None

    def batch(self, contender: Contender, iterations: int) -> float:
        """Seconds per call of one timed batch, on its slowest rank."""
        answers = self._ask("batch", contender, iterations)
        slowest_s = max(float(str(answer["seconds"])) for answer in answers)
        return slowest_s / iterations

    def distinct_crews(self) -> list[Crew]:
        """Each crew once, although one may hold several engines."""
        return list({id(crew): crew for crew in self.crews.values()}.values())

    def _ask(self, do: str, who: Contender, iterations: int = 1) -> Sequence[Message]:
        task: Message = {
            "do": do,
            "engine": who.engine,
            "algorithm": who.algorithm,
            "iterations": iterations,
        }
        try:
            return self.crews[who.engine].ask(task, _TURN_S)
        except RingleaderError as exc:
            raise RingleaderError(f"{who.title}: {exc}") from exc


@contextmanager
def session(engines: Sequence[str], places: Sequence[Place]) -> Iterator[Session]:
    """Start one worker per place, and an MPI job beside them; end all of them."""
    with ExitStack() as stack:
        found = Session(len(places))
        mpi = _start_mpi(stack, found) if "mpi" in engines else None
        in_torch = [engine for engine in engines if engine != "mpi"]
        if in_torch:
            crew = _start_torch(stack, places)
            found.versions["torch"] = str(crew.welcome(_START_S)[0]["version"])
            for engine in in_torch:
                _open_engine(engine, crew, places, found)
        if mpi is not None:
            _welcome_mpi(mpi, found)
        yield found


def _start_torch(stack: ExitStack, places: Sequence[Place]) -> Crew:
    crew = stack.enter_context(Crew("torch worker", len(places)))
    for rank, place in enumerate(places):
        module = [sys.executable, "-m", "ringleader.cli.bench.worker"]
        who = ["--rank", str(rank), "--size", str(len(places))]
        crew.start([*module, "--control", crew.address, *who], place.popen)
    return crew


def _open_engine(
    engine: str, crew: Crew, places: Sequence[Place], found: Session
) -> None:
    """A group that fell back to TCP must not be reported as shared memory."""
    answers = crew.ask(_opening(engine, crew, places), _OPEN_S)
    strange = {str(answer["links"]) for answer in answers} - {"", engine}
    if strange:
        found.missing[engine] = f"its ranks are linked by {', '.join(sorted(strange))}"
    else:
        found.crews[engine] = crew


def _opening(engine: str, crew: Crew, places: Sequence[Place]) -> Message:
    if engine == "gloo":
        store = (crew.directory / "gloo-store").as_uri()
        interface = places[0].interface
        return {"do": "open", "engine": engine, "store": store, "interface": interface}
    return {"do": "open", "engine": engine, "peers": _peers(engine, places)}


def _peers(engine: str, places: Sequence[Place]) -> list[str]:
    if places[0].interface is None:
        return [f"127.0.0.1:{port}" for port in free_ports(len(places))]
    port = _FIRST_PORT + list(TITLES).index(engine)
    return [f"{place.address}:{port}" for place in places]


def _start_mpi(stack: ExitStack, found: Session) -> Crew | None:
    try:
        mpirun = _find_mpirun()
    except ConfigError as exc:
        found.missing["mpi"] = str(exc)
        return None
    crew = stack.enter_context(Crew("mpirun", found.ranks))
    job = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(found.ranks)]
    module = [sys.executable, "-m", "ringleader.cli.bench.mpi_worker"]
    crew.start([*job, *module, "--control", crew.address])
    return crew


def _welcome_mpi(crew: Crew, found: Session) -> None:
    """An MPI that is installed but does not start is missing too, with its words."""
    try:
        found.versions["mpi"] = str(crew.welcome(_START_S)[0]["version"])
    except RingleaderError as exc:
        found.missing["mpi"] = str(exc)
    else:
        found.crews["mpi"] = crew


def _find_mpirun() -> str:
    if importlib.util.find_spec("mpi4py") is None:
        raise ConfigError("mpi4py is not installed; pip install 'ringleader[bench]'")
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise ConfigError("no mpirun here; pip install 'ringleader[bench]'")
    return path
