"""``start_run``: checks the options of ``ringleader run`` and carries it out.

Apart from ``cli.run``, so that ``run --help`` does not import what a run needs.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from ringleader import settings
from ringleader.cli.extras import require_extra
from ringleader.cli.run_choice import run_everywhere
from ringleader.cli.run_job import RunPlan, run_job
from ringleader.cli.run_options import num_processes, processes_here, sizes
from ringleader.cli.tls_options import use_tls
from ringleader.errors import ConfigError, RingleaderError
from ringleader.jobs.machine.outcome import report_outcome
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.dry_run import check_dry_run
from ringleader.node.launch.fork_server import can_fork
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.local_modules import LocalSources, find_sources
from ringleader.node.launch.named_backend import names_gloo
from ringleader.node.launch.new_interpreter import needs_new_interpreter
from ringleader.node.launch.process_exit import leave
from ringleader.node.launch.program import Program, find_program
from ringleader.node.launch.survival_notice import (
    check_partition,
    check_survival,
    survival_notice,
)
from ringleader.node.launch.warm_run import become_warm_run
from ringleader.node.peering.membership_profiles import MembershipProfile
from ringleader.node.protocol.agent_config import AgentConfig
from ringleader.node.protocol.local_requests import EnterJob
from ringleader.settings import DefaultBackend
from ringleader.settings.tracing import trace_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of ``ringleader run``, as ``--help`` describes them."""

    script: str
    args: list[str]
    module: bool
    nodes: int | None
    min_nodes: int | None
    max_nodes: int | None
    wait: float
    nproc_per_node: str
    max_restarts: int
    survive: bool
    partition: str
    job: str
    peers: str
    coordinator: str
    mdns: bool
    interface: list[str]
    port: int
    tensor_port: str
    transport: str
    rank0: str
    profile: MembershipProfile
    timeout: float
    any_script: bool
    plaintext: bool
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    compress: str
    checkpoint: str
    trace: str
    dry_run: bool
    backend: str


def start_run(options: RunOptions, ctx: typer.Context) -> NoReturn:
    """Run the program and end this process with the exit status of the run."""
    errors = Console(stderr=True, highlight=False, soft_wrap=True)

    def complain(text: str) -> None:
        text = f"ringleader run: {text}"
        errors.print(text, style="bold red", markup=False, soft_wrap=True)

    threading.excepthook = lambda failed: _end_with_thread(failed, complain)
    try:
        processes = num_processes(options.nproc_per_node)
        program = find_program(options.script, options.args, is_module=options.module)
        code = run_everywhere(ctx, program, processes)
        if code is None:
            become_warm_run(settings.home_directory())
            code = run_job(plan_run(options, program, processes), errors)
    except RingleaderError as exc:
        complain(str(exc))
        report_outcome(str(exc))
        code = 1
    except KeyboardInterrupt:  # a job that runs, or is being made, ends in order
        errors.print("ringleader run: interrupted; nothing was started")
        code = 128 + signal.SIGINT
    leave(code)


def _end_with_thread(
    failed: threading.ExceptHookArgs, complain: Callable[[str], None]
) -> None:
    """End this process, and with it the workers: a thread that it needs has failed."""
    name = failed.thread.name if failed.thread else "a thread"
    text = f"{name} failed: {failed.exc_type.__name__}: {failed.exc_value}"
    traceback.print_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
    complain(text)
    report_outcome(text, is_here=True)
    os._exit(1)


def plan_run(options: RunOptions, program: Program, processes: int) -> RunPlan:
    """Check the options and export what workers read from the environment.

    Raises ``ConfigError``.
    """
    need, most = sizes(
        options.nodes, options.min_nodes, options.max_nodes, survive=options.survive
    )
    check_survival(survive=options.survive, nproc_per_node=processes or 1)
    _export(options)
    sources = find_sources(program)
    if options.dry_run:
        check_dry_run(program, sources)
    check_partition(options.partition, sources, survive=options.survive)
    _export_backend(options.backend, program, sources)
    return RunPlan(
        program=program,
        may_fork=can_fork() and not needs_new_interpreter(sources),
        nproc=1 if options.survive else processes or processes_here(),
        max_restarts=options.max_restarts,
        plaintext=options.plaintext,
        min_left=options.min_nodes or 1,
        notice=survival_notice(sources) if options.survive else [],
        compress=settings.compress(),
        request=EnterJob(
            job=options.job,
            min_nodes=need,
            max_nodes=most,
            wait_s=options.wait,
            timeout_s=options.timeout,
            fingerprint=job_fingerprint(
                None if options.any_script else sources,
                survives=options.survive,
                partition=options.partition,
            ),
            rank0=options.rank0,
        ),
        agent=_agent(options),
    )


def _agent(options: RunOptions) -> AgentConfig:
    return agent_config(
        coordinator=options.coordinator,
        peers=options.peers,
        interfaces=options.interface,
        uses_mdns=options.mdns or None,
        plaintext=options.plaintext or None,
        port=options.port,
        profile=options.profile.value,
        prints_events=True,
    )


def _export(options: RunOptions) -> None:
    """Set the variables that the workers of this run read."""
    if options.compress:
        settings.export({"RINGLEADER_COMPRESS": options.compress})
    if options.checkpoint:
        is_url = "://" in options.checkpoint
        folder = options.checkpoint
        if not is_url:  # ~ of each machine's user, if the option came from another one
            folder = os.path.abspath(os.path.expanduser(folder))
        settings.export({"RINGLEADER_CHECKPOINT": folder})
    if options.trace:
        settings.export(trace_environment(options.trace))
    if options.dry_run:
        settings.export({"RINGLEADER_DRY_RUN": "1"})
    if options.tensor_port:
        settings.export({"RINGLEADER_PORTS": options.tensor_port})
    settings.tensor_ports()  # before anything starts
    files = (options.tls_ca, options.tls_cert, options.tls_key)
    use_tls(*files, plaintext=options.plaintext)
    if options.transport:
        _check_transport(options.transport)
        settings.export({"RINGLEADER_TRANSPORT": options.transport})


def _check_transport(transport: str) -> None:
    if transport not in ("auto", "tcp", "grpc"):
        raise ConfigError(f"--transport {transport}: use auto, tcp or grpc")
    if transport == "grpc":
        require_extra("coordinator")


def _export_backend(backend: str, program: Program, sources: LocalSources) -> None:
    """Let a program that names no backend use ours, unless the user decides."""
    if backend not in ("", "ringleader", "script"):
        text = f"--backend {backend}: only ringleader can replace the script's backend"
        raise ConfigError(f"{text}; for another one, change the script")
    if backend:
        default = DefaultBackend.ALL if backend != "script" else DefaultBackend.NONE
    elif os.environ.get("RINGLEADER_DEFAULT"):
        default = settings.default_backend()
    else:
        names = names_gloo(sources, program.args)
        default = DefaultBackend.UNNAMED if names else DefaultBackend.LIBRARIES
    settings.export({"RINGLEADER_DEFAULT": default})
