"""``run_job``: starts the agent and the workers of ``ringleader run``."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from rich.console import Console

from ringleader import settings
from ringleader.cli.worker_output import with_own_output
from ringleader.errors import ConfigError, GroupAborted, PeerLost, RingleaderError
from ringleader.jobs.machine.outcome import report_outcome
from ringleader.monitoring.number_folders import make_number_folder
from ringleader.node.launch.agent_process import AgentProcess
from ringleader.node.launch.end_with_parent import end_with_parent
from ringleader.node.launch.fork_server import ForkServer
from ringleader.node.launch.program import Program
from ringleader.node.launch.resident_agent import agent_for_run
from ringleader.node.launch.resident_events import print_events
from ringleader.node.protocol.agent_client import AgentClient
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob
from ringleader.settings.job import job_settings
from ringleader.settings.number_log import VARIABLE, number_folder
from ringleader.transport.name_lookups import no_name_lookups


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The command line, checked."""

    program: Program
    may_fork: bool
    """Whether workers may start as forks of a process that has imported torch."""
    nproc: int
    max_restarts: int
    plaintext: bool
    min_left: int
    """With --survive, the job ends if a machine fails and fewer are left."""
    notice: list[str]
    """What --survive promises for this program; empty without it."""
    compress: str
    request: EnterJob
    agent: AgentConfig


_FINISHED_BY_OTHERS = "the worker here was lost; other machines have finished the job"


def run_job(plan: RunPlan, errors: Console) -> int:
    """Start the agent while torch is being imported: both are slow."""
    if plan.nproc > 1:  # OpenMP reads it when torch is imported
        threads = max(1, (os.cpu_count() or 1) // plan.nproc)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if "torch" in sys.modules:  # a fork of a warm process: it was imported without
        _set_threads(os.environ.get("OMP_NUM_THREADS", ""))
    importing = _TorchImport()
    importing.start()
    if plan.compress:
        importing.wait()
        import_module("ringleader.compression.scheme").parse(plan.compress)

    def say(text: str) -> None:
        errors.print(f"ringleader: {text}", markup=False)

    with (
        agent_for_run(plan.agent, plan.request.job, say) as agent,  # a fork forgets it
        _number_folder(plan),
    ):
        importing.wait()
        with ForkServer.start() if plan.may_fork else nullcontext() as server:
            if isinstance(agent, AgentProcess):
                return _launch(plan, agent, server, errors)
            with print_events(Path(plan.agent.home), say):
                return _launch(plan, agent, server, errors)


@contextmanager
def _number_folder(plan: RunPlan) -> Iterator[None]:
    """Tell workers where ``ringleader.log`` writes, unless whoever started us did."""
    if number_folder() is not None:
        yield
        return
    with make_number_folder(Path(plan.agent.home), plan.request.job) as folder:
        os.environ[VARIABLE] = str(folder)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE, None)


def _set_threads(number: str) -> None:
    if number.isdecimal() and int(number) > 0:
        import_module("torch").set_num_threads(int(number))


class _TorchImport(threading.Thread):
    """Imports torch while this process does something else."""

    def __init__(self) -> None:
        super().__init__(name="ringleader-import", daemon=True)
        self._error: BaseException | None = None

    def run(self) -> None:
        """Import what the launcher needs of torch."""
        gc.disable()  # it would take a sixth of the time
        try:
            import_module("torch.distributed.launcher.api")
        except BaseException as exc:  # noqa: BLE001 - raised by ``wait``
            self._error = exc
        gc.freeze()
        gc.enable()

    def wait(self) -> None:
        """Return when torch is imported; raises ``ConfigError`` if it cannot be.

        To import it once more in this process could hang.
        """
        self.join()
        if self._error is not None:
            cause = f"{type(self._error).__name__}: {self._error}"
            where = traceback.extract_tb(self._error.__traceback__)[-1]
            text = f"torch cannot be imported here: {cause}"
            raise ConfigError(
                f"{text} ({where.filename}, line {where.lineno})"
            ) from self._error


def _as_ours(error: Exception) -> RingleaderError:
    """The error of ours that torch has wrapped into its ``error``."""
    cause = error.__cause__
    return cause if isinstance(cause, RingleaderError) else GroupAborted(str(error))


def _worker_command(plan: RunPlan, server: ForkServer | None) -> list[str]:
    command = [sys.executable, *plan.program.command()]
    if server is not None:
        command = server.command(command)
    if own := job_settings().output:
        command = with_own_output(command, own)
    return end_with_parent(command)


def _launch(
    plan: RunPlan, agent: AgentClient, server: ForkServer | None, errors: Console
) -> int:
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousError

    from ringleader.node.launch.elastic_agent import Workers, run_workers
    from ringleader.node.launch.elastic_rendezvous import AgentRendezvous
    from ringleader.node.launch.failure_policy import JobFailed
    from ringleader.node.launch.rendezvous import LOOPBACK

    handler = AgentRendezvous(
        agent,
        plan.request,
        encrypts=not plan.plaintext,
        min_nodes=plan.min_left,
    )
    for line in plan.notice:
        errors.print(f"ringleader: {line}", markup=False)
    handler.on_progress = lambda text: errors.print(f"ringleader: {text}", markup=False)
    known = settings.environment().get("PYTHONPATH", "")
    if imports := [*filter(None, (job_settings().imports, plan.program.imports))]:
        # For the workers, not for us.
        folders = [*imports, known] if known else imports
        settings.export({"PYTHONPATH": os.pathsep.join(folders)})
    workers = Workers(
        command=_worker_command(plan, server),
        count=plan.nproc,
        max_restarts=plan.max_restarts,
        start_s=plan.request.timeout_s,
    )
    try:
        with no_name_lookups(LOOPBACK):  # torch asks for this host's full name
            run_workers(handler, workers)
        if handler.policy.is_over:
            report_outcome(_FINISHED_BY_OTHERS, is_consequence=True)
    except JobFailed as exc:
        text = f"ringleader run: job {plan.request.job}: {exc}"
        errors.print(text, style="bold red", markup=False, soft_wrap=True)
        report_outcome(str(exc), is_here=exc.is_here, is_consequence=exc.is_consequence)
        return exc.exit_status
    except RendezvousError as exc:
        raise _as_ours(exc) from exc
    except SignalException as exc:
        return 128 + int(exc.sigval)
    except DistError as exc:
        reason = str(exc).splitlines()[0]
        text = f"lost while the workers started ({reason}); run it again"
        raise PeerLost("a machine", text) from exc
    return 0
