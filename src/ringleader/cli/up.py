"""``ringleader up``: joins the cluster in the background and stays."""

from __future__ import annotations

import getpass
import json
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ringleader import settings
from ringleader.cli.terminal import exit_on_error, is_interactive, prompt
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerError, PeerLost
from ringleader.node.peering.membership_profiles import MembershipProfile
from ringleader.node.protocol.agent_port import AGENT_PORT

if TYPE_CHECKING:  # slow to import; --help needs none of them
    from ringleader.node.protocol.agent_client import AgentClient
    from ringleader.node.protocol.agent_config import AgentConfig
    from ringleader.node.protocol.snapshot import Snapshot

_WAIT_S = 5.0
_POLL_S = 0.05


def up(  # noqa: PLR0913 - one parameter per option of the command
    jobs: Annotated[
        bool | None,
        typer.Option(
            "--jobs/--no-jobs",
            help="Let machines of the cluster run programs as you here, or not; asked "
            "once, and remembered.",
            show_default=False,
        ),
    ] = None,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop", help="With --no-jobs, end jobs of others that run here."
        ),
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install", help="Start it whenever you log in; shows what is written."
        ),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Undo --install.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before --install writes.")
    ] = False,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm",
            help="Keep a process with torch imported, so that runs start sooner; "
            "costs its memory.",
        ),
    ] = False,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="Stay in this terminal until Ctrl-C."),
    ] = False,
    peers: Annotated[
        str,
        typer.Option(
            help="HOST[:PORT],... of other machines, if multicast does not find them."
        ),
    ] = "",
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Find the others through this coordinator."
        ),
    ] = "",
    mdns: Annotated[
        bool, typer.Option("--mdns", help="With --coordinator, use multicast, too.")
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
    profile: Annotated[
        MembershipProfile,
        typer.Option(
            help="How fast a silent machine counts as lost: lan (3.5 s) to "
            "high_latency (50 s)."
        ),
    ] = MembershipProfile.LAN,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for other machines.")
    ] = _WAIT_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on standard output.")
    ] = False,
) -> None:
    """Join the cluster in the background and stay, until 'ringleader down'.

    One agent per user: 'ringleader run' uses it. It says what it allows:
    with --jobs, any machine of this cluster may run programs as you here.
    """
    with exit_on_error("up"):
        home = settings.home_directory()
        if stop and jobs is not False:
            raise ConfigError("--stop ends the jobs of others; it needs --no-jobs")
        if jobs is False:
            _refuse(home)  # before anything that may fail
        if uninstall:
            from ringleader.cli.up_install import uninstall_service

            uninstall_service(yes=yes)
            return
        from ringleader.node.launch.agent_settings import agent_config

        cluster = _cluster(home)
        allowed = _permission(home, cluster, jobs)
        config = agent_config(
            coordinator=coordinator,
            peers=peers,
            interfaces=interface or (),
            uses_mdns=mdns or None,
            port=port,
            profile=profile.value,
            warm=warm,
        )
        if foreground:
            raise typer.Exit(_run_here(config, allowed=bool(allowed)))
        if install:
            from ringleader.cli.up_install import install_service

            install_service(config, yes=yes)
        is_new = _start(
            config, is_installed=install, allowed=bool(allowed), refuses=jobs is False
        )
        if stop:
            _stop_jobs(home)
        seen = _wait_for_others(home, Deadline.after(wait))
        if seen is not None and as_json:
            typer.echo(_json(seen))
        elif seen is not None:
            _report(home, seen, is_new=is_new)


def _cluster(home: Path) -> str:
    """Return the title of the cluster; raises ``ConfigError`` if there is none."""
    from ringleader.node.launch.resident_agent import cluster_title
    from ringleader.settings.tls_files import tls_files

    if (files := tls_files()) is not None:
        from ringleader.identity.user_credentials import UserCredentials

        return UserCredentials.load(files).title
    if title := cluster_title(home):
        return title
    raise ConfigError(
        "this machine is in no cluster yet; run 'ringleader init' here to make one, or "
        "'ringleader join' with the phrase of an existing one"
    )


def _permission(home: Path, cluster: str, given: bool | None) -> bool | None:
    """Return whether jobs are allowed: as given, as remembered, or as answered now.

    None if the user could not be asked: then they are refused, and nothing remembered.
    """
    from ringleader.identity.jobs_permission import load_permission, store_permission
    from ringleader.identity.storage.home import Home

    remembered = load_permission(Home(home), cluster)
    answer = remembered if given is None else given
    if answer is None:
        answer = _ask(cluster) if is_interactive() else None
    if answer is None:
        text = "ringleader up: jobs are refused, as there is no terminal to ask"
        typer.echo(f"{text}; pass --jobs or --no-jobs", err=True)
    elif answer != remembered:
        store_permission(Home(home), cluster, allowed=answer)
    return answer


def _ask(cluster: str) -> bool:
    typer.echo(
        f"With jobs allowed, any machine of cluster {cluster} may run programs as\n"
        f"{getpass.getuser()} on this machine: read, change and delete your files.",
        err=True,
    )
    question = "Allow it? It is remembered; change it with --jobs, --no-jobs. [y/N] "
    try:
        typed = prompt(question, "no answer").reveal()
    except ConfigError:
        return False
    return typed.strip().lower() in ("y", "yes")


def _run_here(config: AgentConfig, *, allowed: bool) -> int:
    import asyncio

    from ringleader.node.agent.process import run_resident
    from ringleader.node.launch.resident_agent import as_resident

    config = as_resident(config, accepts_jobs=allowed, prints_events=True)
    try:
        return asyncio.run(run_resident(config))
    except OSError as exc:
        raise ConfigError(f"the agent cannot start: {exc}") from exc


def _refuse(home: Path) -> None:
    """Refuse jobs: for the next agent, too, if the one that is up does not answer."""
    from ringleader.cli.jobs_of_others import refuse_jobs

    with suppress(ConfigError):  # in no cluster: there is nothing to remember
        _permission(home, _cluster(home), False)
    try:
        refuse_jobs(home)
    except PeerError as exc:
        text = (
            "it may still take jobs. End it with: ringleader down; the next one refuses"
        )
        raise DeadlineExceeded(exc.peer, f"{exc.text}; {text}") from exc


def _stop_jobs(home: Path) -> None:
    from ringleader.cli.jobs_of_others import stop_jobs_of_others

    for each in stop_jobs_of_others(home):
        typer.echo(f"Ended here: job {each.spec.id}, {each.spec.title}", err=True)


def _start(
    config: AgentConfig, *, is_installed: bool, allowed: bool, refuses: bool
) -> bool:
    """Start the agent, unless one is up; return whether it was started.

    The permission holds at once, also for one that is up. ``refuses``: that was all the
    user wanted, and it is done; an agent that differs otherwise is only told.
    """
    from ringleader.node.launch import resident_agent

    home = Path(config.home)
    if is_installed:
        _wait_for_service(home)
    record = resident_agent.find_resident(home)
    if record is None:
        config = resident_agent.as_resident(config, accepts_jobs=allowed)
        resident_agent.start_resident(config)
        return True
    if reason := resident_agent.why_not(record, config, _cluster(home)):
        if not refuses:
            raise ConfigError(f"{reason}; first: ringleader down")
        typer.echo(f"ringleader up: jobs are refused now. {reason}", err=True)
    if record.config.accepts_jobs != allowed:
        with _connect(home) as agent:
            resident_agent.set_jobs_permission(agent, allowed=allowed)
    return is_installed


def _wait_for_service(home: Path) -> None:
    """Wait until the service manager has started the agent."""
    from ringleader.node.launch import resident_agent

    deadline = Deadline.after(30.0)
    while resident_agent.find_resident(home) is None:
        if deadline.is_over():
            text = "the service manager did not start the agent within 30 s"
            raise ConfigError(f"{text}; try: ringleader up --foreground")
        time.sleep(_POLL_S)


def _connect(home: Path) -> AgentClient:
    from ringleader.node.launch import resident_agent
    from ringleader.node.protocol.agent_client import AGENT

    record = resident_agent.find_resident(home)
    agent = resident_agent.connect_to_resident(home, record) if record else None
    if agent is None:
        raise PeerLost(AGENT, "has ended; see its log, and run 'ringleader up' again")
    return agent


def _wait_for_others(home: Path, deadline: Deadline) -> Snapshot | None:
    """Wait for other machines; None where the agent cannot be asked."""
    from ringleader.node.launch.resident_agent import ask_snapshot

    if not hasattr(socket, "AF_UNIX"):  # Windows
        typer.echo("Up. Commands cannot ask it on this system; it ends with: down")
        return None
    with _connect(home) as agent:
        while True:
            seen = ask_snapshot(agent)
            if len(seen.ring) > 1 or (deadline.is_over() and seen.leader):
                return seen
            time.sleep(_POLL_S)


def _report(home: Path, seen: Snapshot, *, is_new: bool) -> None:
    """Print what the user has now."""
    from ringleader.cli.jobs_of_others import (
        describe_jobs_of_others,
        running_jobs_of_others,
    )
    from ringleader.cli.up_report import describe, warmth
    from ringleader.node.launch.resident_agent import find_resident

    record = find_resident(home)
    how = warmth(record) if record else ""
    here = next(row for row in seen.nodes if row.is_here)
    found = [] if here.accepts_jobs else running_jobs_of_others(home)
    jobs = describe_jobs_of_others(found, seen)
    typer.echo(describe(seen, is_new=is_new, warmth=how, jobs=jobs))


def _json(seen: Snapshot) -> str:
    return json.dumps(seen.plain(), indent=1)
