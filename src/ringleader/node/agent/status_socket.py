"""``StatusSocket``: a Unix socket through which other commands of this user ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

from ringleader.node.agent.local_user import is_own_process
from ringleader.node.agent.request_handler import RequestHandler
from ringleader.node.protocol.socket_path import short_path


class StatusSocket:
    """Serves snapshots to other processes of this user."""

    def __init__(self, path: Path, handler: RequestHandler) -> None:
        self._path = path
        self._handler = handler
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Listen, for this user only."""
        if not hasattr(asyncio, "start_unix_server"):
            return  # Windows: `status` asks over the network instead
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self._path.parent.stat().st_mode) & 0o077:
            os.chmod(self._path.parent, 0o700)

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            if is_own_process(writer.get_extra_info("socket")):
                await self._handler.serve(reader, writer, is_parent=False)
            else:
                writer.close()

        sock = socket.socket(socket.AF_UNIX)
        try:
            with short_path(self._path) as path:
                sock.bind(path)
                self._server = await asyncio.start_unix_server(serve, sock=sock)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self._path.unlink()
