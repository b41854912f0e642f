"""``ringleader run``: finds the other machines and runs a script on all of them."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from ringleader import settings
from ringleader.cli.extras import require_extra
from ringleader.cli.run_job import RunPlan, run_job
from ringleader.cli.tls_options import TlsCa, TlsCert, TlsKey, use_tls
from ringleader.errors import ConfigError, RingleaderError
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.fork_server import can_fork
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.local_modules import find_sources
from ringleader.node.launch.new_interpreter import needs_new_interpreter
from ringleader.node.launch.process_exit import leave
from ringleader.node.launch.program import find_program
from ringleader.node.launch.survival_notice import check_survival, survival_notice
from ringleader.node.peering.membership_profiles import MembershipProfile
from ringleader.node.protocol.agent_config import AGENT_PORT
from ringleader.node.protocol.local_requests import EnterJob

_MOST = 64
_WAIT_S = 10.0
_TIMEOUT_S = 900.0


def run(  # noqa: PLR0913 - one parameter per option of the command
    script: Annotated[
        str, typer.Argument(help="Python program to run; with -m, a module.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the program.")
    ] = None,
    module: Annotated[
        bool,
        typer.Option("-m", "--module", help="Run SCRIPT as python -m SCRIPT would."),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST, help="Wait for exactly this many machines."),
    ] = None,
    min_nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST,
            help="Start with at least this many machines (default: 2).",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for more machines than --min-nodes."),
    ] = _WAIT_S,
    nproc_per_node: Annotated[
        int, typer.Option(min=1, help="Number of worker processes on this machine.")
    ] = 1,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            help="Restart workers this often after the program failed; lost machines "
            "do not count.",
        ),
    ] = 0,
    survive: Annotated[
        bool,
        typer.Option(
            "--survive",
            help="Go on when machines are lost and let others join, without "
            "restarting the workers.",
        ),
    ] = False,
    job: Annotated[
        str,
        typer.Option(
            help="Name of the job; machines with the same name train together."
        ),
    ] = "default",
    peers: Annotated[
        str,
        typer.Option(
            help="HOST[:PORT],... of other machines, if multicast does not find them; "
            "one that all can reach is enough."
        ),
    ] = "",
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Find the other machines through this coordinator instead of "
            "multicast (see: ringleader coordinator).",
        ),
    ] = "",
    mdns: Annotated[
        bool,
        typer.Option("--mdns", help="With --coordinator, use multicast, too."),
    ] = False,
    interface: Annotated[
        list[str] | None, typer.Option(help="Use this network interface; repeatable.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help=f"Port of the agent; 0: {AGENT_PORT} if free."
        ),
    ] = 0,
    tensor_port: Annotated[
        str,
        typer.Option(
            metavar="PORT[-PORT]",
            help="Ports for tensors, to be let through a firewall; every worker takes "
            "one, and the agent one more.",
        ),
    ] = "",
    transport: Annotated[
        str,
        typer.Option(
            help="How tensors travel: auto, tcp, or grpc: all through rank 0, the only "
            "machine that must be reachable for them."
        ),
    ] = "",
    rank0: Annotated[
        str,
        typer.Option(
            help="Name or id of the machine that must be rank 0; its weights are "
            "everybody's (default: where the job was started first)."
        ),
    ] = "",
    profile: Annotated[
        MembershipProfile,
        typer.Option(
            help="How fast a silent machine counts as lost: lan (3.5 s) to "
            "high_latency (50 s)."
        ),
    ] = MembershipProfile.LAN,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, help="Give up if training has not started after this many seconds."
        ),
    ] = _TIMEOUT_S,
    any_script: Annotated[
        bool,
        typer.Option("--any-script", help="Let the machines run different programs."),
    ] = False,
    plaintext: Annotated[
        bool,
        typer.Option(
            "--plaintext", help="Do not encrypt tensors; only for a trusted network."
        ),
    ] = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    compress: Annotated[
        str,
        typer.Option(
            help="Compress DDP gradients: auto, int8, bf16, topk:0.01, powersgd:2..."
        ),
    ] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Where ringleader.checkpoint keeps the run's checkpoints on this "
            "machine; ringleader.resume() finds them.",
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="End when ringleader.parallelize has measured the machines and "
            "printed its plan, without training.",
        ),
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            help="ringleader: use it also where the program asks for gloo, or for no "
            "backend."
        ),
    ] = "",
) -> None:
    """Find the other machines of the cluster and run SCRIPT on all of them.

    Run the same command on every machine, in any order. When a machine
    is lost, the others restart the workers without it; when one comes,
    they restart with it. With --survive nobody restarts.

    The exit status is 0 if the script succeeded here and no other machine
    failed (with --survive: if it succeeded here), that of the script if it
    failed here, 128 + N after signal N, and else 1.
    """
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        need, most = _sizes(nodes, min_nodes)
        check_survival(survive=survive, nproc_per_node=nproc_per_node)
        if compress:
            settings.export({"RINGLEADER_COMPRESS": compress})
        if checkpoint:
            folder = checkpoint if "://" in checkpoint else os.path.abspath(checkpoint)
            settings.export({"RINGLEADER_CHECKPOINT": folder})
        if dry_run:
            settings.export({"RINGLEADER_DRY_RUN": "1"})
        if tensor_port:
            settings.export({"RINGLEADER_PORTS": tensor_port})
        settings.tensor_ports()  # before anything starts
        use_tls(tls_ca, tls_cert, tls_key, plaintext=plaintext)
        if transport:
            settings.export({"RINGLEADER_TRANSPORT": _check_transport(transport)})
        if backend:
            settings.export({"RINGLEADER_DEFAULT": _check_backend(backend)})
        program = find_program(script, args or [], is_module=module)
        sources = find_sources(program)
        plan = RunPlan(
            program=program,
            may_fork=can_fork() and not needs_new_interpreter(sources),
            nproc=nproc_per_node,
            max_restarts=max_restarts,
            plaintext=plaintext,
            min_left=min_nodes or 1,
            notice=survival_notice(sources) if survive else [],
            compress=settings.compress(),
            request=EnterJob(
                job=job,
                min_nodes=need,
                max_nodes=most,
                wait_s=wait,
                timeout_s=timeout,
                fingerprint=job_fingerprint(
                    None if any_script else sources, survives=survive
                ),
                rank0=rank0,
            ),
            agent=agent_config(
                coordinator=coordinator,
                peers=peers,
                interfaces=interface or (),
                uses_mdns=mdns or None,
                plaintext=plaintext or None,
                port=port,
                profile=profile.value,
                prints_events=True,
            ),
        )
        code = run_job(plan, errors)
    except RingleaderError as exc:
        text = f"ringleader run: {exc}"
        errors.print(text, style="bold red", markup=False, soft_wrap=True)
        code = 1
    leave(code)


def _sizes(nodes: int | None, min_nodes: int | None) -> tuple[int, int]:
    if nodes is not None and min_nodes is not None:
        raise ConfigError("--nodes and --min-nodes exclude each other; give only one")
    if nodes is not None:
        return nodes, nodes
    return (2 if min_nodes is None else min_nodes), _MOST


def _check_transport(transport: str) -> str:
    if transport not in ("auto", "tcp", "grpc"):
        raise ConfigError(f"--transport {transport}: use auto, tcp or grpc")
    if transport == "grpc":
        require_extra("coordinator")
    return transport


def _check_backend(backend: str) -> str:
    """Return the value of RINGLEADER_DEFAULT."""
    if backend != "ringleader":
        text = f"--backend {backend}: only ringleader can replace the script's backend"
        raise ConfigError(f"{text}; for another one, change the script")
    return "1"
