"""Worlds of real processes for torch.distributed, forked from a warm interpreter.

Importing FSDP, pipelining and Dynamo takes seconds; the scenario server does it once
and never starts a thread, so that a rank starts in milliseconds. A rank waits for
calls, runs one scenario after the other in the same process group and reports each.
When one fails its world is replaced: errors of a collective are final for a group.

This file holds both sides: tests import it, and the scenario server runs ``main``. A
rank ends like any Python program, through the end of the script: a hang there is seen.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self, cast

from tests.kit.warm_python import import_all

BACKEND = "ringleader"
BACKEND_VARIABLE = "RINGLEADER_TEST_BACKEND"
"""Set it to gloo to run the same scenarios on another backend, as a control."""

GROUP_TIMEOUT_S = 60.0
SCENARIO_LIMIT_S = 90.0
"""Limit after which a rank prints its stacks and ends; beyond the group's timeout."""
GRACE_S = 3.0
"""Time for the other ranks to fail once one has failed."""
DUMP_S = 0.2
"""Time for a rank to write its stacks; there is no event to wait for."""
WARM_UP_S = 500.0
LEAVE_S = 60.0
LOG_TAIL_CHARS = 6000
TRACE_FRAMES = 8


def backend() -> str:
    """The backend under test."""
    return os.environ.get(BACKEND_VARIABLE, BACKEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """Everything a new rank needs to form its group."""

    rank: int
    size: int
    init_method: str
    log: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCall:
    """A scenario to run: ``module.name(rank, size, *args)``."""

    module: str
    name: str
    args: tuple[Any, ...] = ()
    is_last: bool = False
    """The process ends with it: an error goes up to the interpreter as in a script."""
    wants_ready: bool = False
    """``ready()`` is a further argument."""
    limit_s: float = SCENARIO_LIMIT_S
    """Time after which the rank prints its stacks and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcome of a call."""

    kind: str
    """ready, done or failed."""
    at_s: float
    text: str = ""
    """Class name and text of the error."""
    trace: str = ""


# -- in the test process -----------------------------------------------------------


class Rank:
    """One rank, seen from the test."""

    def __init__(self, spec: RankSpec, pid: int, pipe: Connection) -> None:
        self.rank = spec.rank
        self.pid = pid
        self.log = Path(spec.log)
        self.pipe = pipe

    def report(self, within_s: float) -> Report:
        """Its next report; "failed" when it ended or stays silent."""
        if not self.pipe.poll(within_s):
            os.kill(self.pid, signal.SIGUSR1)  # it writes down where it is
            self.pipe.poll(DUMP_S)
            return self._failure("nothing heard in time")
        try:
            report = self.pipe.recv()
        except (EOFError, OSError):
            return self._failure("ended without a report")
        assert isinstance(report, Report)
        return report

    def kill(self) -> float:
        """SIGKILL: a pulled plug, no goodbye. Returns when that was."""
        os.kill(self.pid, signal.SIGKILL)
        return time.monotonic()

    def has_ended(self, within_s: float) -> bool:
        """Return whether the process ends in time; the system then closes its pipe."""
        until_s = time.monotonic() + within_s
        while self.pipe.poll(max(0.0, until_s - time.monotonic())):
            try:
                self.pipe.recv()
            except (EOFError, OSError):
                return True
        return False

    def written(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def _failure(self, what: str) -> Report:
        text = f"rank {self.rank}: {what}; its output:\n{self.written()}"
        return Report(kind="failed", at_s=time.monotonic(), text=text, trace=text)


class ScenarioServer:
    """The warm process; it forks ranks and reaps them."""

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self.folder = folder
        self._modules = modules
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair()
        code = f"from {__name__} import main; main()"  # -m: pickled as __main__
        with theirs, open(self.folder / "scenario_server.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._socket = ours
        self._pipe = Connection(os.dup(ours.fileno()))
        self._answer(WARM_UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._pipe is not None
        assert self._socket is not None
        self._pipe.close()
        self._socket.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LEAVE_S)

    def fork(self, spec: RankSpec) -> Rank:
        """Start one rank."""
        assert self._pipe is not None
        assert self._socket is not None
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._socket, [b"F"], [theirs.fileno()])
            self._pipe.send(spec)
            return Rank(spec, self._answer(LEAVE_S), Connection(os.dup(ours.fileno())))

    def reap(self, rank: Rank) -> int:
        """The exit code of a rank that has ended or is ending."""
        assert self._pipe is not None
        assert self._socket is not None
        self._socket.send(b"R")
        self._pipe.send(rank.pid)
        rank.pipe.close()
        return self._answer(LEAVE_S)

    def specs(
        self, size: int, scheme: str, timeout_s: float = GROUP_TIMEOUT_S
    ) -> list[RankSpec]:
        """The ranks of a world that meets at a new address."""
        from ringleader.transport.free_ports import (
            free_ports,  # the server finds us itself
        )

        number = next(self._numbers)
        port = free_ports(1)[0]
        address = {
            "file": f"file://{self.folder}/meeting{number}",
            "tcp": f"tcp://127.0.0.1:{port}",
            "env": f"env://127.0.0.1:{port}",
            "script": f"script://127.0.0.1:{port}",
        }[scheme]
        return [
            RankSpec(
                rank=rank,
                size=size,
                init_method=address,
                log=f"{self.folder}/world{number}-rank{rank}.log",
                timeout_s=timeout_s,
            )
            for rank in range(size)
        ]

    def _answer(self, within_s: float) -> int:
        assert self._pipe is not None
        with contextlib.suppress(EOFError):
            if self._pipe.poll(within_s):
                return int(self._pipe.recv())
        text = (self.folder / "scenario_server.log").read_text(errors="replace")
        raise AssertionError(f"no answer of the scenario server; its output:\n{text}")


class World:
    """Ranks in one process group, which run scenario after scenario."""

    def __init__(self, scenario_server: ScenarioServer, size: int, scheme: str) -> None:
        self.size = size
        self._server = scenario_server
        self._scheme = scheme
        self._ranks: list[Rank] = []
        self._trouble = ""

    def open(self) -> None:
        """Fork the ranks and let them form a group."""
        specs = self._server.specs(self.size, self._scheme)
        self._ranks = [self._server.fork(spec) for spec in specs]
        self._trouble = self._collect()

    def play(self, call: ScenarioCall) -> str:
        """Run it on every rank; what went wrong, or nothing."""
        if self._trouble:
            return f"no world of {self.size} could be formed:\n{self._trouble}"
        for rank in self._ranks:
            rank.pipe.send(call)
        trouble = self._collect(call.limit_s)
        if trouble:
            self.end()
            self.open()
        return trouble

    def leave(self) -> list[int]:
        """Let every rank destroy its group and end; their exit codes."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            with contextlib.suppress(OSError):  # it may be dead, its code will tell
                rank.pipe.send(None)
        for rank in ranks:
            if not rank.has_ended(LEAVE_S):
                rank.kill()
        return [self._server.reap(rank) for rank in ranks]

    def end(self) -> None:
        """Kill what lives."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            self._server.reap(rank)

    def _collect(self, limit_s: float = SCENARIO_LIMIT_S) -> str:
        """The failures among one report of every rank; one failure ends the waiting."""
        until_s = time.monotonic() + limit_s + GRACE_S
        waiting = {rank.pipe: rank for rank in self._ranks}
        failures = []
        while waiting:
            spoke = wait(list(waiting), max(0.0, until_s - time.monotonic()))
            for pipe in spoke or list(waiting):
                rank = waiting.pop(cast(Connection, pipe))
                report = rank.report(0.0)
                if report.kind == "failed":
                    until_s = min(until_s, time.monotonic() + GRACE_S)
                    head = f"-- rank {rank.rank} of {self.size}\n"
                    failures.append(head + report.trace)
        return "\n".join(failures)


@contextlib.contextmanager
def one_shot(
    scenario_server: ScenarioServer,
    size: int,
    call: ScenarioCall,
    timeout_s: float,
    scheme: str = "tcp",
) -> Iterator[list[Rank]]:
    """A world for one call that ends it; every process is reaped afterwards."""
    specs = scenario_server.specs(size, scheme, timeout_s)
    ranks = [scenario_server.fork(spec) for spec in specs]
    try:
        for rank in ranks:
            formed = rank.report(GROUP_TIMEOUT_S + GRACE_S)
            assert formed.kind == "done", formed.trace
        for rank in ranks:
            rank.pipe.send(replace(call, is_last=True))
        yield ranks
    finally:
        for rank in ranks:
            if not rank.pipe.closed:
                rank.kill()
                scenario_server.reap(rank)


# -- in the scenario server ----------------------------------------------------------


def serve(fd: int) -> tuple[RankSpec, Connection] | None:
    """Fork and reap as told; returns in each new rank, and at the end in the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test process decides
    sock = socket.socket(fileno=fd)
    pipe = Connection(os.dup(fd))
    children: set[int] = set()
    pipe.send(0)
    while True:
        request, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if request == b"F":
            spec = pipe.recv()
            pid = os.fork()
            if pid == 0:
                sock.close()
                pipe.close()
                return spec, Connection(fds[0])
            os.close(fds[0])
            children.add(pid)
            pipe.send(pid)
        elif request == b"R":
            pid = pipe.recv()
            children.discard(pid)
            pipe.send(_reap(pid))
        else:
            break
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        _reap(pid)
    return None


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- in a rank ---------------------------------------------------------------------


def live(spec: RankSpec, pipe: Connection) -> None:
    """The life of a rank: form the group, then do what is ordered until told to go."""
    log = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    report = attempt(partial(form, spec))
    pipe.send(report[0])
    while report[0].kind == "done":
        try:
            call = pipe.recv()
        except EOFError:
            return
        if call is None:
            importlib.import_module("torch.distributed").destroy_process_group()
            return
        report = attempt(partial(perform, spec, call, pipe), call.limit_s)
        pipe.send(report[0])
        if call.is_last:
            break
    if report[1] is not None:
        raise report[1]


def attempt(
    action: Callable[[], None], limit_s: float = SCENARIO_LIMIT_S
) -> tuple[Report, Exception | None]:
    """Do it under a watchdog that needs neither the GIL nor a living group."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        action()
    except Exception as exc:  # noqa: BLE001 - reported to the test
        text = f"{type(exc).__name__}: {exc}"
        trace = "".join(traceback.format_exception(exc, limit=-TRACE_FRAMES))
        return _now("failed", text, trace), exc
    finally:
        faulthandler.cancel_dump_traceback_later()
    return _now("done"), None


def _now(kind: str, text: str = "", trace: str = "") -> Report:
    return Report(kind=kind, at_s=time.monotonic(), text=text, trace=trace)


def form(spec: RankSpec) -> None:
    """Join the default group; a script that torchrun would start does so itself."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    method = spec.init_method
    place: dict[str, Any] = {"rank": spec.rank, "world_size": spec.size}
    scheme, _, address = method.partition("://")
    if scheme in ("env", "script"):
        host, port = address.split(":")
        os.environ.update(MASTER_ADDR=host, MASTER_PORT=port)
        os.environ.update(RANK=str(spec.rank), WORLD_SIZE=str(spec.size))
        method, place = "env://", {}
    if scheme == "script":
        return
    dist.init_process_group(
        backend(),
        init_method=method,
        timeout=timedelta(seconds=spec.timeout_s),
        **place,
    )


def perform(spec: RankSpec, call: ScenarioCall, pipe: Connection) -> None:
    """Run one scenario and destroy the groups it made."""
    scenario = getattr(importlib.import_module(call.module), call.name)
    args = list(call.args)
    if call.wants_ready:
        args.append(lambda: pipe.send(_now("ready")))
    scenario(spec.rank, spec.size, *args)
    if not call.is_last:
        sweep()


def sweep() -> None:
    """Destroy every group but the default one, in the order they were made."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    dist.barrier()
    for group in list(distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def main() -> None:
    """Warm up, serve, and in every fork: live."""
    fd, *modules = sys.argv[1:]
    import_all(modules)
    born = serve(int(fd))
    if born is not None:
        live(*born)
