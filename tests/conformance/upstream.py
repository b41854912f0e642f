"""PyTorch's own tests of torch.distributed, opened for any backend.

They ship inside torch as one class with a method per test; each test runs on
``world_size`` ranks, which are processes. Three things stand between them and a backend
that is not built into torch, and ``load`` removes them:

- Gates. The decorators compare the name of the backend with "gloo" and "mpi" while the
  module is imported. It is imported under the name of Gloo, so that all that Gloo can
  is demanded. What only MPI is trusted with is demanded too: ``all_to_all`` on the CPU.
- Sizes. "small world size" means fewer than 8 ranks upstream; three suffice.
- Waiting. Upstream polls ten times a second, which is most of a test's time. Ranks meet
  at a real barrier here, and the end of a process is an event.

Upstream judges rank 0 by its exit code and believes the others; we look at every rank.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import multiprocessing
import multiprocessing.connection
import os
import sys
import types
import unittest
import unittest.mock
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, ClassVar

from ringleader.deadline import Deadline

_OPEN_TO_ALL = "Only MPI supports"
"""Beginning of upstream's skip reason when a backend lacks a feature."""

_SMALLEST_WORLD = 3
"""Tests of sub-groups take ranks 1 and 2."""

_ERROR_CODE = 10
"""Exit code of a rank that sent its traceback: upstream's TEST_ERROR_EXIT_CODE."""

_REAP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: backend, number of ranks, start method, limit per test."""

    backend: str
    world_size: int

    start: str = "fork"
    """fork shares one import of torch; spawn imports it in every rank of every test."""

    limit_s: float = 60.0
    """Bound on one test. Slow ones take five seconds: they wait for timeouts."""


class AlsoGloo(str):
    """A backend's name that equals "gloo" too: bodies of tests branch on it."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other


class OnRanks(unittest.TestCase):
    """Starts the ranks of a test, waits for them with a limit, leaves none behind.

    A mixin before upstream's classes: there ``processes`` is a list of ranks, and the
    overridden methods with an underscore are called. One object lives in the driver and
    one in each rank.
    """

    trial: ClassVar[Trial]
    meeting: ClassVar[Barrier]
    """Rendezvous of the ranks of the running test."""

    processes: list[BaseProcess]
    skip_return_code_checks: list[object]

    def setUp(self) -> None:
        """Start the ranks; each runs the test of the same name."""
        super().setUp()
        context = multiprocessing.get_context(self.trial.start)
        # The class keeps it alive: a spawned rank opens its semaphores by name.
        type(self).meeting = context.Barrier(self.trial.world_size)

        def rank_process(
            *, args: tuple[object, ...], name: str, **_: object
        ) -> BaseProcess:
            whole = (self.trial, self.meeting, *args)
            process: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=live_as_rank, name=name, args=whole
            )
            return process

        upstream: Any = self
        upstream._start_processes(rank_process)

    def tearDown(self) -> None:
        """Kill the ranks that have not ended."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(_REAP_S)
        super().tearDown()

    def _barrier(self, wait_for: int | None = None, timeout: float = 60) -> None:
        """Return once every rank has come here; upstream never waits for fewer."""
        assert wait_for in (None, self.trial.world_size)
        self.meeting.wait(timeout)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Return if the test passed on all ranks; else raise what went wrong."""
        deadline = Deadline.after(self.trial.limit_s)
        upstream: Any = self
        try:
            late = _wait_for_the_end(self.processes, deadline)
            if late:
                upstream._get_timedout_process_traceback()  # into the log of the test
                who = ", ".join(process.name for process in late)
                text = f"not ended within {deadline.after_s:g} s: {who}"
                raise TimeoutError(text)
            if fn not in self.skip_return_code_checks:
                self._check_that_none_died()
            upstream._check_return_codes(fn, deadline.after_s - deadline.left_s())
        finally:
            for pipe in upstream.pid_to_pipe.values():
                pipe.close()

    def _check_that_none_died(self) -> None:
        """Fail on signals and uncaught exceptions; upstream reports codes above 1."""
        codes = {each.name: each.exitcode or 0 for each in self.processes}
        died = {name: code for name, code in codes.items() if code == 1 or code < 0}
        explained = _ERROR_CODE in codes.values()
        assert explained or not died, f"ranks died, with exit codes: {died}"


def _wait_for_the_end(
    processes: list[BaseProcess], deadline: Deadline
) -> list[BaseProcess]:
    """Return late ranks; none once one has failed, which explains the others."""
    while living := [each for each in processes if each.exitcode is None]:
        if any(each.exitcode == _ERROR_CODE for each in processes):
            return []
        ends = [each.sentinel for each in living]
        if not multiprocessing.connection.wait(ends, deadline.left_s()):
            return living
    return []


def live_as_rank(trial: Trial, meeting: Barrier, rank: int, *args: object) -> None:
    """The life of one rank of one test; ``args`` are upstream's."""
    suite: Any = load(trial)
    suite.meeting = meeting
    suite._run(rank, *args)


@functools.cache
def load(trial: Trial) -> type[OnRanks]:
    """The test class for ``trial``. Once per process: the gates open during import."""
    _set_environment(trial)
    _stand_in_for_expecttest()
    warnings.filterwarnings("ignore")
    importlib.import_module("torch").set_num_threads(1)
    if trial.backend == "ringleader":
        _register_ours()
    distributed_test = _import_with_our_gates(trial.world_size)
    distributed_test.BACKEND = AlsoGloo(trial.backend)
    distributed_test.timedelta = _patient
    os.environ["BACKEND"] = trial.backend
    tests = distributed_test.DistributedTest._DistTestBase
    _open_gates(tests)
    parents = (OnRanks, distributed_test.TestDistBackend, tests)
    return type("Suite", parents, {"trial": trial})


def _patient(seconds: float) -> timedelta:
    """One or two seconds may pass before a busy machine has formed a group."""
    return timedelta(seconds=3 if 1 <= seconds <= 2 else seconds)


def _set_environment(trial: Trial) -> None:
    """Set the variables that upstream reads at import and in the ranks."""
    os.environ["BACKEND"] = "gloo"
    os.environ["WORLD_SIZE"] = str(trial.world_size)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Not a path of ours in a spawned rank: there the driver has set it for the test.
    meeting_file = Path(os.environ["TMPDIR"]) / "init"
    os.environ.setdefault("INIT_METHOD", meeting_file.as_uri())


def _register_ours() -> None:
    """Register the backend, even if torch did not find our entry point."""
    importlib.import_module("ringleader.backend.register").register()
    # A group would import it, in every rank of every test; forked ranks inherit it.
    importlib.import_module("ringleader.backend.create")


def _stand_in_for_expecttest() -> None:
    """torch.testing imports this package, but these tests never use it."""
    if importlib.util.find_spec("expecttest") is None:
        module: Any = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        module.ACCEPT = False
        sys.modules["expecttest"] = module


def _import_with_our_gates(world_size: int) -> Any:  # noqa: ANN401 - it is untyped
    """Upstream's module; meanwhile some of its decorators are ours."""
    testing = "torch.testing._internal"
    decorators = importlib.import_module(f"{testing}.common_distributed")
    gates: dict[str, Any] = {}
    if world_size >= _SMALLEST_WORLD:
        gates["skip_if_small_worldsize"] = _leave_as_it_is
    if not importlib.import_module("torch").cuda.is_available():
        gates["skip_if_no_gpu"] = _skip_for_cuda
        gates["skip_if_lt_x_gpu"] = lambda *_, **__: _skip_for_cuda
    with unittest.mock.patch.multiple(decorators, **gates):
        return importlib.import_module(f"{testing}.distributed.distributed_test")


def _leave_as_it_is(test: Callable[..., None]) -> Callable[..., None]:
    return test


def _skip_for_cuda(test: Callable[..., None]) -> Callable[..., None]:
    """Before ranks start; upstream starts them to find out, a quarter of a run."""
    return unittest.skip("needs CUDA")(test)


def _open_gates(tests: type) -> None:
    for test in vars(tests).values():
        if getattr(test, "__unittest_skip_why__", "").startswith(_OPEN_TO_ALL):
            test.__unittest_skip__ = False
