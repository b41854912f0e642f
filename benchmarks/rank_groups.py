"""Groups of ranks, one per backend, that take turns in one benchmark.

Every group exists for the whole run and sleeps while another one is timed, so that a
disturbance of the machine affects all of them. Its ranks are processes that create the
group the way a user does. It needs only torch, numpy and the standard library.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import platform
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

OURS, GLOO = "ringleader", "gloo"

START_S, REPLY_S = 120.0, 180.0
"""Limits for importing torch in four processes on two cores, and for one batch."""


@dataclass(frozen=True, slots=True)
class Task:
    """One operation on one rank, which can be repeated."""

    check: Callable[[], None]
    """Runs the operation once and raises if the result is wrong."""
    step: Callable[[], object]
    meanwhile: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context in which the steps are timed, such as a busy thread."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Rank and device of a task."""

    rank: int
    ranks: int
    device: torch.device

    settle: Callable[[], object] = lambda: None
    """Waits until the device has finished. To ask for its type in each call took 2 us
    of those that are measured."""


MakeTask = Callable[..., Task]
"""Makes a task from the seat of a rank and the bytes of its tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """One backend of a benchmark."""

    title: str
    backend: str
    device: str = "cpu"
    transport: str = "auto"
    ranks: int = 2
    threads: int = 1
    """Compute threads of each rank."""


# -- a rank ----------------------------------------------------------------------


def run_rank(competitor: Competitor, rank: int, store: str, pipe: Connection) -> None:
    """Run a rank: join the group, then handle requests from the pipe."""
    try:
        seat = join(competitor, rank, store)
        pipe.send(None)
        obey(seat, pipe)
        dist.destroy_process_group()
    except EOFError:
        pass  # the driver has ended
    except Exception:  # noqa: BLE001 - reported to the driver
        pipe.send(traceback.format_exc())


def join(competitor: Competitor, rank: int, store: str) -> Seat:
    """Initialize the default group as rank ``rank``."""
    torch.set_num_threads(competitor.threads)
    warnings.simplefilter("ignore", FutureWarning)  # renamed in torch 2.13
    os.environ["RINGLEADER_TRANSPORT"] = competitor.transport
    if Path("/sys/class/net/lo").exists():  # the name of a container may not resolve
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if competitor.backend == OURS:
        from ringleader.backend.register import register

        register()
    dist.init_process_group(
        competitor.backend,
        init_method=Path(store).as_uri(),
        rank=rank,
        world_size=competitor.ranks,
        timeout=timedelta(seconds=60),
    )
    device = torch.device(competitor.device)
    if competitor.device != "cuda":
        return Seat(rank, competitor.ranks, device)
    torch.cuda.set_device(0)
    return Seat(rank, competitor.ranks, device, torch.cuda.synchronize)


def obey(seat: Seat, pipe: Connection) -> None:
    """Handle the requests that ``RankGroup`` sends."""
    tasks: dict[str, Task] = {}
    while (order := pipe.recv()) is not None:
        match order:
            case "prepare", name, make, total_bytes:
                tasks[name] = make(seat, total_bytes)
                tasks[name].check()
                pipe.send(None)
            case ("forget",):
                tasks.clear()
                pipe.send(None)
            case "time", name, calls:
                pipe.send(time_calls(tasks[name], calls))
            case "time each", name, calls:
                pipe.send(time_each(tasks[name], calls))


def time_calls(task: Task, calls: int) -> float:
    """Return the seconds per call of a batch that starts with a barrier."""
    dist.barrier()
    with task.meanwhile():
        started_s = time.perf_counter()
        for _ in range(calls):
            task.step()
        return (time.perf_counter() - started_s) / calls


def time_each(task: Task, calls: int) -> list[float]:
    """Return the seconds of every call of a batch that starts with a barrier."""
    dist.barrier()
    clock, step = time.perf_counter, task.step
    ends_s = [clock()]
    with task.meanwhile():
        for _ in range(calls):
            step()
            ends_s.append(clock())
    return [b - a for a, b in itertools.pairwise(ends_s)]


# -- the driver ------------------------------------------------------------------


class BackendFailure(RuntimeError):
    """A backend failed in a row of the table."""


class RankGroup:
    """All ranks of one competitor; started on first use and after a failure."""

    def __init__(self, competitor: Competitor) -> None:
        self.competitor = competitor
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def title(self) -> str:
        """The name of the competitor."""
        return self.competitor.title

    def prepare(self, name: str, make: MakeTask, total_bytes: int = 0) -> None:
        """Make a task on every rank, beside earlier ones, and verify its values."""
        self._request("prepare", name, make, total_bytes)

    def forget(self) -> None:
        """Free the memory of all tasks."""
        if self._processes:
            self._request("forget")

    def time(self, name: str, calls: int) -> float:
        """Return the seconds per call on the slowest rank."""
        return float(max(self._request("time", name, calls)))

    def time_each(self, name: str, calls: int) -> list[list[float]]:
        """Return the seconds of every call, for each rank."""
        return self._request("time each", name, calls)

    def calls_for(self, name: str, batch_s: float) -> int:
        """Return how many calls of a task take about ``batch_s``."""
        calls = 2
        for _ in range(2):  # the first estimate is of a cold operation
            calls = max(1, min(20_000, round(batch_s / self.time(name, calls))))
        return calls

    def _request(self, *order: object) -> list[Any]:
        """Send a request to every rank and return their replies.

        Raises BackendFailure.
        """
        if not self._processes:
            self._start()
        try:
            for pipe in self._pipes:
                pipe.send(order)
            return self._replies(REPLY_S)
        except OSError as exc:
            self.stop()
            raise BackendFailure(f"a rank died: {exc!r}") from exc

    def stop(self) -> None:
        """End all ranks: ask them to exit, then kill them after 5 s."""
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder = [], [], None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="rank-group-")
        store = Path(self._folder.name) / "store"
        for rank in range(self.competitor.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run_rank,
                args=(self.competitor, rank, str(store), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()  # so that the pipe ends when the rank does
            self._processes.append(process)
            self._pipes.append(ours)
        self._replies(START_S)

    def _replies(self, within_s: float) -> list[Any]:
        """Return one reply per rank; the first error explains later ones."""
        until_s = time.monotonic() + within_s
        replies: dict[Connection, object] = {}
        while waiting := [pipe for pipe in self._pipes if pipe not in replies]:
            ready = wait(waiting, max(0.0, until_s - time.monotonic()))
            if not ready:
                self._fail(f"no reply within {within_s:g} s")
            for pipe in self._pipes:
                if pipe in ready:
                    replies[pipe] = self._reply(pipe)
        return [replies[pipe] for pipe in self._pipes]

    def _reply(self, pipe: Connection) -> object:
        try:
            reply = pipe.recv()
        except EOFError:
            reply = f"rank {self._pipes.index(pipe)} died without a message"
        if isinstance(reply, str):
            self._fail(reply)
        return reply

    def _fail(self, why: str) -> NoReturn:
        self.stop()
        raise BackendFailure(why)


def in_turns(groups: Sequence[RankGroup], number: int) -> Sequence[RankGroup]:
    """Return the order of the groups in a round: reversed in every other one."""
    return groups[:: -1 if number % 2 else 1]


# -- the report ------------------------------------------------------------------


def in_words(seconds: float | None) -> str:
    """Format a time with three digits and its unit."""
    if seconds is None:
        return "failed"
    for scale, unit in ((1e-3, "us"), (1.0, "ms")):
        if abs(seconds) < scale:
            return f"{seconds / scale * 1e3:.4g} {unit}"
    return f"{seconds:.3g} s"


def machine() -> dict[str, object]:
    """Describe the machine and its load, for the results."""
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
