"""Entry point of the agent process: one per node, separate from the workers, no torch.

``python -m ringleader.node.agent.process`` is started by ``launch.agent_process`` and
lives as long as the socket to its parent. It finds the other nodes, maintains the
membership, measures links and forms the rounds of the parent's jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Coroutine

from ringleader.errors import RingleaderError
from ringleader.node.agent.agent_core import AgentCore
from ringleader.node.agent.agent_identity import AgentIdentity
from ringleader.node.agent.build_snapshot import build_snapshot
from ringleader.node.agent.load_services import load_services
from ringleader.node.agent.request_handler import RequestHandler
from ringleader.node.agent.status_socket import StatusSocket
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_config import CONFIG, AgentConfig
from ringleader.node.protocol.local_requests import RequestDone, RequestFailed
from ringleader.node.protocol.socket_handover import take_socket
from ringleader.settings.tls_files import tls_files

LEAVE_S = 2.0
"""Limit for leaving the cluster when the agent ends."""
CONFIG_S = 10.0


async def run_agent(sock: socket.socket, config: AgentConfig) -> int:
    """Run until the parent closes ``sock`` or the agent fails; return exit status."""
    reader, writer = await asyncio.open_connection(sock=sock)
    with contextlib.ExitStack() as stack:
        try:
            identity = stack.enter_context(
                AgentIdentity.claim(config.home, tls_files())
            )
            core = AgentCore.listen(identity, config, build_snapshot)
            load_services(core)
            await core.start()
        except (RingleaderError, OSError) as exc:
            await _report_failure(writer, exc)
            return 1
        handler = RequestHandler(core.jobs, core.services, core.snapshot)
        stack.callback((await _open_status_socket(core, handler)).close)
        with contextlib.suppress(NotImplementedError):  # Windows has no such signal
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, core.ended.set)
        writer.write(framing.pack(RequestDone()))
        await _run_until_end(handler.serve(reader, writer, is_parent=True), core)
        return 1 if core.ended.is_set() else 0


async def _open_status_socket(core: AgentCore, handler: RequestHandler) -> StatusSocket:
    path = core.identity.status_socket
    status_socket = StatusSocket(path, handler)
    try:
        await status_socket.listen()
    except OSError as exc:  # path too long for a socket: status asks over the network
        core.dialer.troubles["ringleader status"] = f"{path}: {exc}"
    return status_socket


async def _run_until_end(serving: Coroutine[None, None, None], core: AgentCore) -> None:
    """Serve the parent until it closes the socket or ``core`` ends."""
    parent = asyncio.create_task(serving)
    end = asyncio.create_task(core.ended.wait())
    try:
        await asyncio.wait([parent, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        parent.cancel()
        end.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await core.stop()


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
    sys.unraisablehook = _ignore_invalid_server_names
    sock = take_socket(sys.argv[1:])
    # The parent decides when the agent ends. SIGTERM is for a user who wants it gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock.setblocking(True)
    sock.settimeout(CONFIG_S)
    size = int.from_bytes(sock.recv(framing.PREFIX_BYTES, socket.MSG_WAITALL), "little")
    config = CONFIG.decode(sock.recv(min(size, 1 << 16), socket.MSG_WAITALL))
    sock.setblocking(False)
    sys.exit(asyncio.run(run_agent(sock, config)))


if __name__ == "__main__":
    main()
