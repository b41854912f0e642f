"""The resident agent of this machine: finding, using and ending it.

``ringleader up`` starts it. ``ringleader run`` uses it if it is there and if it does
what the options of the run ask for; otherwise it starts an agent of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerError, PeerLost
from ringleader.identity import cluster_secret
from ringleader.identity.storage.home import Home
from ringleader.node.launch.agent_process import AgentProcess, forget_at_fork
from ringleader.node.protocol.agent_client import (
    AGENT,
    AgentClient,
    OnProgress,
    connect_to_agent,
)
from ringleader.node.protocol.agent_config import AgentConfig, run_directory
from ringleader.node.protocol.local_requests import (
    PERMISSION,
    GetSnapshot,
    SetJobsPermission,
)
from ringleader.node.protocol.resident_record import (
    ResidentRecord,
    is_resident_alive,
    read_record,
)
from ringleader.node.protocol.snapshot import Snapshot
from ringleader.settings.tls_files import tls_files

CONNECT_S = 20.0
"""An agent answers in milliseconds; on a machine that swaps it may take long."""
RUN_S = 120.0
"""The same for a run, which trains alone if it gives the agent up. One that has ended
refuses at once."""
STOP_S = 30.0
"""How long the agent may take to leave the cluster before it is killed."""
_POLL_S = 0.02

_OPTIONS = {
    "peers": "--peers",
    "coordinator": "--coordinator",
    "interfaces": "--interface",
    "port": "--port",
    "profile": "--profile",
    "name": "RINGLEADER_NAME",
    "warm": "--warm",
}
"""Settings of an agent that a command may ask for -> how the user gives them."""


def find_resident(home: Path) -> ResidentRecord | None:
    """Return the record of the resident agent if it runs."""
    record = read_record(home)
    return record if record is not None and is_resident_alive(home) else None


def connect_to_resident(home: Path, record: ResidentRecord) -> AgentClient | None:
    """Connect to the resident agent; None if it is gone, or this system cannot."""
    path = run_directory(home) / record.socket
    return connect_to_agent(path, Deadline.after(CONNECT_S))


def ask_snapshot(agent: AgentClient, within_s: float = CONNECT_S) -> Snapshot:
    """Return everything the agent knows."""
    reply = agent.ask(GetSnapshot(), Deadline.after(within_s))
    assert isinstance(reply, Snapshot)
    return reply


def agent_for_run(
    config: AgentConfig, job: str, on_progress: OnProgress
) -> AgentClient:
    """Return a connection to the resident agent, or start an agent for this run.

    ``on_progress`` is told why a resident agent is not used.
    """
    home = Path(config.home)
    record = find_resident(home)
    if record is None:
        return AgentProcess.start(config)
    reason = why_not(record, config, cluster_title(home))
    agent = None if reason else connect_to_resident(home, record)
    if agent is not None and not reason:
        reason = _busy_with(agent, job)
    if agent is None or reason:
        if agent is not None:
            agent.close()
        if reason:
            on_progress(f"{reason}; this run starts an agent of its own")
        return AgentProcess.start(config)
    forget_at_fork(agent)
    return agent


def cluster_title(home: Path) -> str:
    """Return the title of the cluster that this user is in; '' if in none."""
    cluster = cluster_secret.load(Home(home))
    return cluster.title if cluster else ""


def set_jobs_permission(agent: AgentClient, *, allowed: bool) -> None:
    """Let a running resident agent accept jobs, or refuse them from now on."""
    deadline = Deadline.after(CONNECT_S)
    agent.use_service(PERMISSION, deadline)
    agent.ask(SetJobsPermission(allowed), deadline)


def _busy_with(agent: AgentClient, job: str) -> str:
    """Return why the agent cannot take part in ``job`` for us; '': it can."""
    try:
        seen = ask_snapshot(agent, RUN_S)
    except PeerError as exc:
        return str(exc)
    mine = next(row for row in seen.nodes if row.is_here)
    if job in mine.jobs:
        return f"another run of job {job} uses the agent that is up"
    return ""


def why_not(record: ResidentRecord, wanted: AgentConfig, cluster: str) -> str:
    """Return what the resident agent does not do as ``wanted``; '': nothing. Pure, but
    for the release and the certificates of this process."""
    here = metadata.version("ringleader")
    if record.version != here:
        text = f"the agent that is up runs ringleader {record.version}, this is {here}"
        return f"{text} (restart it: ringleader down, ringleader up)"
    files = tls_files()
    if record.tls != (list(files.environment().values()) if files else []):
        return "the agent that is up has other certificates"
    if not record.tls and cluster != record.cluster:
        text = f"the agent that is up is in cluster {record.cluster}"
        return f"{text} (restart it: ringleader down, ringleader up)"
    names = differing(record.config, wanted)
    if names:
        return f"the agent that is up was started without this {', '.join(names)}"
    return ""


def differing(resident: AgentConfig, wanted: AgentConfig) -> list[str]:
    """Return the options that the user gave and that ``resident`` does not have. What
    was not given may be anything. Pure."""
    defaults = AgentConfig(home=wanted.home)
    found = []
    for name, option in _OPTIONS.items():
        value = _plain(getattr(wanted, name))
        has = _plain(getattr(resident, name))
        if value != _plain(getattr(defaults, name)) and value != has:
            found.append(option)
    if not resident.uses_mdns and wanted.uses_mdns:
        found.append("--mdns")
    return found


def _plain(value: object) -> object:
    """Return lists of peers without their empty parts."""
    if isinstance(value, str):
        return ",".join(sorted(part for part in value.split(",") if part))
    return value


def stop_resident(home: Path) -> ResidentRecord | None:
    """End the resident agent; return its record, None if none runs.

    It leaves the cluster and ends its services. If it does not in time, it is killed.
    Raises ``DeadlineExceeded`` if even that fails.
    """
    record = find_resident(home)
    if record is None:
        if is_resident_alive(home):
            raise ConfigError("an agent is just starting; try again in a moment")
        return None
    _check_pid(home, record)
    for number in _ENDING:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, number)
        deadline = Deadline.after(STOP_S)
        while not deadline.is_over():
            if not is_resident_alive(home):
                return record
            time.sleep(_POLL_S)
    text = f"process {record.pid} does not end; is its machine or disk stuck?"
    raise DeadlineExceeded(AGENT, text)


_ENDING: Sequence[signal.Signals] = (
    [signal.SIGTERM] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGKILL]
)


def _check_pid(home: Path, record: ResidentRecord) -> None:
    """Raise ``ConfigError`` if the record's process id is not valid in this process.

    Two containers with a common home may count processes separately.
    """
    agent = connect_to_resident(home, record)
    if agent is None:
        return
    with agent:
        listener = agent.listener_pid()
    if listener not in (None, record.pid):
        text = f"the agent is process {record.pid} of another container"
        raise ConfigError(f"{text}; run 'ringleader down' there")


def as_resident(
    config: AgentConfig, *, accepts_jobs: bool, prints_events: bool = False
) -> AgentConfig:
    """Return the settings of a resident agent."""
    return msgspec.structs.replace(
        config,
        is_resident=True,
        accepts_jobs=accepts_jobs,
        prints_events=prints_events,
    )


def start_resident(config: AgentConfig) -> ResidentRecord:
    """Start a resident agent in the background and wait until it listens.

    ``config`` is that of ``as_resident``. Raises ``ConfigError`` if one runs already or
    this machine is in no cluster.
    """
    agent = AgentProcess.start(config)
    agent.detach()
    record = read_record(Path(config.home))
    if record is None:
        raise PeerLost(AGENT, "ended as soon as it had started")
    return record
