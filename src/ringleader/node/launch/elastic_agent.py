"""``run_workers``: runs the workers of this machine on torch's elastic agent.

torch's agent restarts workers, counts restarts and waits for the other machines at the
end. Here the cluster decides about all three: see ``failure_policy``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import (
    LocalElasticAgent,
)
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    SignalException,
    SubprocessContext,
)
from torch.distributed.launcher.api import LaunchConfig

from ringleader import settings
from ringleader.deadline import Deadline
from ringleader.node.launch.elastic_rendezvous import AgentRendezvous
from ringleader.node.launch.failure_report import first_failure
from ringleader.node.launch.interrupts import Interrupts
from ringleader.node.launch.launch_folder import launch_folder
from ringleader.settings import launch

MONITOR_S = 0.1
SHUTDOWN_S = 5
"""How long workers may take to end after a signal, unless
``TORCH_ELASTIC_SHUTDOWN_TIMEOUT`` says otherwise."""
LEAVE_S = 5.0
"""Time to leave the job after that."""
_TORCH_SIGNALS = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}
"""What torch may handle: all others are for ``Interrupts``."""
_QUIET = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)
"""Loggers of torch that repeat in other words what we tell the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers that this machine runs."""

    command: Sequence[str]
    """The program and its arguments."""
    count: int
    max_restarts: int
    start_s: float
    """How long a round may take to start."""


class ElasticAgent(LocalElasticAgent):
    """torch's elastic agent, with the cluster's rules for failures and the end."""

    def __init__(
        self,
        handler: AgentRendezvous,
        spec: WorkerSpec,
        logs: DefaultLogsSpecs,
        start_s: float,
    ) -> None:
        shutdown_s = settings.shutdown_timeout_s(SHUTDOWN_S)
        super().__init__(spec, logs, shutdown_timeout=shutdown_s)
        self.shutdown_s = shutdown_s
        self._handler = handler
        self._start_s = start_s

    def live_workers(self) -> list[int]:
        """Return the process ids of the workers that have not ended."""
        if not isinstance(self._pcontext, SubprocessContext):
            return []  # none was started yet
        handlers = self._pcontext.subprocess_handlers.values()
        return [each.proc.pid for each in handlers if each.proc.poll() is None]

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Enter rounds until the agents of all machines have exchanged their ranks."""
        deadline = Deadline.after(self._start_s)
        while True:
            try:
                super()._rendezvous(worker_group)
            except DistError as exc:
                if deadline.is_over():
                    raise
                reason = str(exc).partition("\n")[0]
                text = f"a machine was lost while the workers started ({reason})"
                self._handler.on_progress(text)
            else:
                return

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED and result.failures:
            handler = self._handler
            failure = first_failure(
                result.failures, handler.get_run_id(), handler.policy.round
            )
            left = handler.policy.restarts_left(failure, self._remaining_restarts)
            self._remaining_restarts = left
            if handler.policy.is_over:
                ended = {w.global_rank: None for w in worker_group.workers}
                return RunResult(WorkerState.SUCCEEDED, return_values=ended)
        return result

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        try:
            result: RunResult = super()._invoke_run(role)
        except SignalException as exc:
            say = self._handler.on_progress
            if self.live_workers():
                text = f"{exc.sigval.name}: ending the workers, within"
                say(f"{text} {self.shutdown_s} s; a second one kills them at once")
            else:
                say(f"{exc.sigval.name}: leaving the job")
            raise
        return result

    def _exit_barrier(self) -> None:
        self._handler.has_finished = True
        self._handler.policy.wait_for_others()


def _signal_error(number: Signals) -> SignalException:
    launch.note_stopping()  # before the workers get the signal
    return SignalException(f"received {number.name}", number)


def run_workers(handler: AgentRendezvous, workers: Workers) -> RunResult:
    """Run the workers through all rounds of the job, and leave it.

    Raises ``JobFailed`` if the job failed here or elsewhere, and what torch's elastic
    agent raises for a signal.
    """
    config = LaunchConfig(1, 1, workers.count)  # knows the defaults for NUMA
    spec_options: dict[str, Any] = {"numa_options": config.numa_options}
    spec = WorkerSpec(
        role="default",
        local_world_size=workers.count,
        entrypoint=workers.command[0],
        args=tuple(workers.command[1:]),
        rdzv_handler=handler,
        max_restarts=workers.max_restarts,
        monitor_interval=MONITOR_S,
        **spec_options,
    )
    settings.export(_TORCH_SIGNALS)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with launch_folder() as folder:
        launch.export_launch_folder(folder)
        logs = DefaultLogsSpecs(log_dir=str(folder))
        agent = ElasticAgent(handler, spec, logs, workers.start_s)
        patience_s = agent.shutdown_s + LEAVE_S
        with Interrupts(agent.live_workers, _signal_error, patience_s):
            try:
                result: RunResult = agent.run()
            except SignalException:
                raise  # closing the connection to our agent tells the others
            except BaseException:
                handler.shutdown()
                raise
            if notice := handler.copies_notice(workers.count):
                handler.on_progress(notice)
            handler.shutdown()
            return result
