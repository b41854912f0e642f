"""Entry point of the agent process: one per node, separate from the workers, no torch.

``python -m ringleader.node.agent.process`` is started by ``launch.agent_process`` and
lives as long as the socket to its parent; a resident agent lives on. It finds the other
nodes, maintains the membership, measures links and forms the rounds of local jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from ringleader.errors import RingleaderError
from ringleader.log_limit import limited_logs, start_anew_if_long
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.build_snapshot import build_snapshot
from ringleader.node.agent.load_services import load_services
from ringleader.node.agent.request_handler import RequestHandler
from ringleader.node.agent.status_socket import StatusSocket
from ringleader.node.agent.warm_runs import keep_warm
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_config import CONFIG, AgentConfig, run_directory
from ringleader.node.protocol.local_requests import RequestDone, RequestFailed
from ringleader.node.protocol.resident_record import (
    LOG,
    ResidentRecord,
    claim_resident,
    remove_record,
    write_record,
)
from ringleader.node.protocol.socket_handover import take_socket
from ringleader.settings.tls_files import tls_files

LEAVE_S = 2.0
"""Limit for leaving the cluster when the agent ends."""
LOG_CHECK_S = 1.0


async def run_agent(sock: socket.socket, config: AgentConfig) -> int:
    """Run until the parent closes ``sock`` or the agent fails; return exit status.

    A resident agent goes on when the parent closes, until SIGTERM.
    """
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        with contextlib.ExitStack() as stack:
            core, handler = await _start(config, stack)
            writer.write(framing.pack(RequestDone()))
            serving = handler.serve(reader, writer, is_parent=True)
            return await _run_until_end(serving, core)
    except (RingleaderError, OSError) as exc:
        await _report_failure(writer, exc)
        return 1


async def run_resident(config: AgentConfig) -> int:
    """Run a resident agent in this process until SIGTERM; return its exit status.

    Raises ``RingleaderError`` or ``OSError`` if it cannot start.
    """
    gc.freeze()  # as in main
    with contextlib.ExitStack() as stack:
        core, _ = await _start(config, stack)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, core.stopped.set)
        return await _run_until_end(None, core)


async def _start(
    config: AgentConfig, stack: contextlib.ExitStack
) -> tuple[AgentCore, RequestHandler]:
    sys.unraisablehook = _ignore_invalid_server_names
    stack.enter_context(limited_logs())
    if config.is_resident:
        held = claim_resident(Path(config.home))
        stack.callback(held.close)
    identity = stack.enter_context(AgentIdentity.claim(config.home, tls_files()))
    core = AgentCore.listen(identity, config, build_snapshot)
    load_services(core)
    await core.start()
    handler = RequestHandler(core.jobs, core.services, core.snapshot)
    handler.is_resident = config.is_resident
    stack.callback((await _open_status_socket(core, handler)).close)
    if config.is_resident:
        write_record(Path(config.home), _record(core))
        stack.callback(remove_record, Path(config.home))
        keep_warm(core)
        log = run_directory(Path(config.home)) / LOG
        core.tasks.run(_keep_log_short(log))
    with contextlib.suppress(NotImplementedError):  # Windows has no such signal
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, core.stopped.set)
    return core, handler


async def _keep_log_short(path: Path) -> None:
    while True:
        start_anew_if_long(path)
        await asyncio.sleep(LOG_CHECK_S)


def _record(core: AgentCore) -> ResidentRecord:
    files = tls_files()
    return ResidentRecord(
        pid=os.getpid(),
        version=core.local.profile.ringleader_version,
        cluster=core.identity.cluster.title,
        socket=core.identity.status_socket.name,
        config=core.config,
        python=sys.executable,
        tls=list(files.environment().values()) if files else [],
    )


async def _open_status_socket(core: AgentCore, handler: RequestHandler) -> StatusSocket:
    path = core.identity.status_socket
    status_socket = StatusSocket(path, handler)
    try:
        await status_socket.listen()
    except OSError as exc:  # path too long for a socket: status asks over the network
        core.dialer.troubles["ringleader status"] = f"{path}: {exc}"
    return status_socket


async def _run_until_end(
    serving: Coroutine[None, None, None] | None, core: AgentCore
) -> int:
    """Serve the parent until it closes the socket or ``core`` ends.

    Returns the exit status: 1 if the agent failed, or was ended under its parent.
    """
    events = (core.ended, core.stopped)
    ends: list[asyncio.Task[Any]] = [asyncio.create_task(e.wait()) for e in events]
    parent = asyncio.create_task(serving) if serving is not None else None
    if parent is not None and not core.config.is_resident:
        ends.append(parent)
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in [*ends, parent]:
            if task is not None:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await core.stop()
    is_stopped = core.stopped.is_set() and not core.config.is_resident
    return 1 if core.ended.is_set() or is_stopped else 0


async def _report_failure(writer: asyncio.StreamWriter, exc: Exception) -> None:
    with contextlib.suppress(OSError):
        writer.write(framing.pack(RequestFailed.of(exc)))
        await writer.drain()
    writer.close()


def _ignore_invalid_server_names(unraisable: sys.UnraisableHookArgs) -> None:
    """Drop the errors that a stranger's non-text TLS server name raises in ``ssl``.

    They would fill standard error.
    """
    if not isinstance(unraisable.exc_value, UnicodeDecodeError):
        sys.__unraisablehook__(unraisable)


def main() -> None:
    """Take over the socket, read the configuration from it and run the agent."""
    sock = take_socket(sys.argv[1:])
    # The parent decides when the agent ends. SIGTERM is for a user who wants it gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock.setblocking(True)  # without a limit: a parent that ends closes its end
    size = int.from_bytes(sock.recv(framing.PREFIX_BYTES, socket.MSG_WAITALL), "little")
    if size == 0:  # it ended before it could say anything
        sys.exit(1)
    config = CONFIG.decode(sock.recv(min(size, 1 << 16), socket.MSG_WAITALL))
    sock.setblocking(False)
    gc.freeze()  # to look through what was imported would block the loop for 20 ms
    sys.exit(asyncio.run(run_agent(sock, config)))


if __name__ == "__main__":
    main()
