"""The agent: one process per node, apart from the workers, without torch.

``python -m ringleader.node.agent.process`` is started by ``agent_client.Agent`` and
lives as long as the socket to its parent. It finds the other nodes, keeps the
membership, measures links and leads the jobs of the parent to their rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Coroutine

from ringleader.errors import RingleaderError
from ringleader.node.agent.agent_core import Resident
from ringleader.node.agent.agent_identity import Keeper
from ringleader.node.agent.build_snapshot import build_snapshot
from ringleader.node.agent.request_handler import Desk, Window
from ringleader.node.protocol import framing
from ringleader.node.protocol.agent_client import CONFIG, AgentConfig, inherited
from ringleader.node.protocol.local_requests import Done, Failed

GOODBYE_S = 2.0


async def live(sock: socket.socket, config: AgentConfig) -> int:
    """Run until the parent hangs up or something ends us; the exit status."""
    reader, writer = await asyncio.open_connection(sock=sock)
    with contextlib.ExitStack() as stack:
        try:
            keeper = stack.enter_context(Keeper.enter(config.home))
            resident = Resident(keeper, config, build_snapshot)
            await resident.start()
        except (RingleaderError, OSError) as exc:
            await _fail(writer, exc)
            return 1
        desk = Desk(resident.jobs, resident.snapshot)
        stack.callback((await _open_window(keeper, resident, desk)).close)
        with contextlib.suppress(NotImplementedError):  # Windows has no such signal
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, resident.ended.set)
        writer.write(framing.pack(Done()))
        await _until_the_end(desk.serve(reader, writer, is_parent=True), resident)
        return 1 if resident.ended.is_set() else 0


async def _open_window(keeper: Keeper, resident: Resident, desk: Desk) -> Window:
    window = Window(keeper.window, desk)
    try:
        await window.open()
    except OSError as exc:  # a path too long for a socket: status asks the network
        resident.scout.troubles["ringleader status"] = f"{keeper.window}: {exc}"
    return window


async def _until_the_end(
    serving: Coroutine[None, None, None], resident: Resident
) -> None:
    """Serve the parent until it hangs up, or until the resident gives up."""
    parent = asyncio.create_task(serving)
    end = asyncio.create_task(resident.ended.wait())
    try:
        await asyncio.wait([parent, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        parent.cancel()
        end.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await resident.stop()


async def _fail(writer: asyncio.StreamWriter, exc: Exception) -> None:
    with contextlib.suppress(OSError):
        writer.write(framing.pack(Failed(str(exc))))
        await writer.drain()
    writer.close()


def _hush(unraisable: sys.UnraisableHookArgs) -> None:
    """A stranger's server name that is not text must not fill our standard error."""
    if not isinstance(unraisable.exc_value, UnicodeDecodeError):
        sys.__unraisablehook__(unraisable)


def main() -> None:
    """Take over the socket, read the configuration, live."""
    sys.unraisablehook = _hush
    sock = inherited(sys.argv[1:])
    # The parent decides when we end. SIGTERM is for a user who wants us gone now.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock.setblocking(True)
    sock.settimeout(10.0)
    size = int.from_bytes(sock.recv(framing.PREFIX_BYTES, socket.MSG_WAITALL), "little")
    config = CONFIG.decode(sock.recv(min(size, 1 << 16), socket.MSG_WAITALL))
    sock.setblocking(False)
    sys.exit(asyncio.run(live(sock, config)))


if __name__ == "__main__":
    main()
