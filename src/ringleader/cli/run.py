"""``ringleader run``: finds the other machines and runs a script on all of them."""

from __future__ import annotations

from typing import Annotated

import typer

from ringleader.cli import run_options
from ringleader.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringleader.node.peering.membership_profiles import MembershipProfile
from ringleader.node.protocol.agent_port import AGENT_PORT

_WAIT_S = 10.0
_TIMEOUT_S = 900.0


def run(  # noqa: PLR0913 - one parameter per option of the command
    ctx: typer.Context,
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
        typer.Option(
            min=1, max=run_options.MOST, help="Wait for exactly this many machines."
        ),
    ] = None,
    min_nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=run_options.MOST,
            help="Start with at least this many machines (default: 2); with --survive "
            "and --nodes, go on with as few.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait for more machines than --min-nodes."),
    ] = _WAIT_S,
    max_nodes: run_options.MaxNodes = None,
    on: run_options.On = "",
    without: run_options.Not = "",
    here: run_options.Here = False,
    nproc_per_node: run_options.Processes = "auto",
    detach: run_options.Detach = False,
    fetch: run_options.FetchPath = None,
    only_rank: run_options.OnlyRank = None,
    quiet_ranks: run_options.QuietRanks = False,
    no_sync: run_options.NoSync = False,
    sync_env: run_options.SyncEnv = False,
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
    partition: Annotated[
        str,
        typer.Option(
            metavar="continue|majority",
            help="With --survive: which side of a divided network goes on. continue: "
            "all, each with a model of its own; majority: the larger one.",
        ),
    ] = "continue",
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
    trace: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Record where the time of each step goes, on all machines; rank 0 "
            "prints a table and writes FILE for ui.perfetto.dev.",
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Prepare and check all machines without training; a program that "
            "calls ringleader.parallelize measures them and prints its plan.",
        ),
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            help="A program that names no backend uses ringleader, one that names one "
            "keeps it. ringleader: also where the program asks for gloo. script: as "
            "torch does, which is gloo without a name."
        ),
    ] = "",
) -> None:
    """Find the other machines of the cluster and run SCRIPT on all of them.

    After 'ringleader up' on every machine, type this on one of them: the
    program's files travel, this machine and all that accept jobs run it,
    and what it prints comes here. Without 'up', or with --here, type the same
    command on every machine, in any order.

    When a machine is lost, the others restart the workers without it; when
    one comes, they restart with it. With --survive nobody restarts.

    The exit status is 0 if the script succeeded, that of the script where
    it failed first, 128 + N after signal N, and else 1. With --here it is
    that of this machine.
    """
    # Imported here: --help needs none of it.
    from ringleader.cli.run_command import RunOptions, start_run

    start_run(
        RunOptions(
            script=script,
            args=args or [],
            module=module,
            nodes=nodes,
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            wait=wait,
            nproc_per_node=nproc_per_node,
            max_restarts=max_restarts,
            survive=survive,
            partition=partition,
            job=job,
            peers=peers,
            coordinator=coordinator,
            mdns=mdns,
            interface=interface or [],
            port=port,
            tensor_port=tensor_port,
            transport=transport,
            rank0=rank0,
            profile=profile,
            timeout=timeout,
            any_script=any_script,
            plaintext=plaintext,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            compress=compress,
            checkpoint=checkpoint,
            trace=trace,
            dry_run=dry_run,
            backend=backend,
        ),
        ctx,
    )
