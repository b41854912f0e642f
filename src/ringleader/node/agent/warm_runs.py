"""``keep_warm``: keeps a process with torch imported, for a resident agent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.launch.fork_server import can_fork
from ringleader.node.protocol.resident_record import read_record, write_record
from ringleader.node.protocol.socket_handover import start_with_socket

RESTART_S = 10.0
"""How long to wait before a process that ended is replaced."""
MAX_NAME_BYTES = 128


def keep_warm(core: AgentCore) -> None:
    """Keep a warm process from now on, if the user wants one and the system can."""
    if not core.config.warm:
        return
    if can_fork():
        core.tasks.run(_keep_warm(core))
    else:
        core.dialer.troubles["--warm"] = "this system cannot fork a process with torch"


async def _keep_warm(core: AgentCore) -> None:
    while True:
        await _run_once(core)
        await asyncio.sleep(RESTART_S)


async def _run_once(core: AgentCore) -> None:
    """Start the process, publish its name, and wait until it ends."""
    ours, theirs = socket.socketpair()
    # -P: what runs are forked from imports nothing of any program.
    command = [sys.executable, "-P", "-m", "ringleader.node.launch.warm_process"]
    try:
        process = start_with_socket(command, theirs, folder=core.config.home)
    except OSError as exc:
        core.dialer.troubles["--warm"] = str(exc)
        ours.close()
        return
    finally:
        theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_NAME_BYTES)
    try:
        name = (await reader.readline()).decode().strip()
        _publish(core, name)
        await reader.read(1)  # until it ends
    except (OSError, ValueError):
        pass
    finally:
        _publish(core, "")
        writer.close()
        await asyncio.shield(asyncio.to_thread(_reap, process))


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Collect the process if it ends at once; it may have runs to finish."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.returncode = process.returncode or 0  # else Popen warns at the end


def _publish(core: AgentCore, name: str) -> None:
    """Write the name to the record, where commands find it."""
    home = Path(core.config.home)
    record = read_record(home)
    if record is not None:
        write_record(home, msgspec.structs.replace(record, warm=name))
