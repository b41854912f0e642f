"""What an agent does for the processes of its machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from pathlib import Path

from ringleader.errors import ConfigError, PeerLost, RingleaderError
from ringleader.node.agent.jobs import Jobs
from ringleader.node.protocol import framing, local_requests
from ringleader.node.protocol.local_requests import (
    Check,
    Done,
    Enter,
    Failed,
    Look,
    Progress,
    Quit,
    Reply,
    Request,
    Serve,
)
from ringleader.node.protocol.snapshot import Snapshot

LOCAL = "a local process"
MAX_REQUEST_BYTES = 64 << 10


class Desk:
    """Answers requests, one conversation per connection."""

    def __init__(self, jobs: Jobs, look: Callable[[], Snapshot]) -> None:
        self._jobs = jobs
        self._look = look

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_parent: bool,
    ) -> None:
        """Answer until the other side hangs up. Only the parent may enter jobs."""

        def send(reply: Reply) -> None:
            writer.write(framing.pack(reply))

        coming = asyncio.create_task(self._next(reader, is_parent=is_parent))
        try:
            while True:
                request = await coming
                # Read on while we work: who hangs up or asks again waits no longer.
                coming = asyncio.create_task(self._next(reader, is_parent=is_parent))
                work = asyncio.create_task(self._answer(request, send))
                await asyncio.wait([work, coming], return_when=FIRST_COMPLETED)
                if not work.done() and isinstance(request, Enter):
                    work.cancel()
                await self._reply(work, send)
                await writer.drain()
        except (PeerLost, OSError):
            pass  # it has hung up: that is how conversations end
        except RingleaderError as exc:
            send(Failed(str(exc)))
        finally:
            coming.cancel()
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _next(self, reader: asyncio.StreamReader, *, is_parent: bool) -> Request:
        body = await framing.read(reader, LOCAL, MAX_REQUEST_BYTES)
        request = local_requests.decode_request(body)
        if not is_parent and not isinstance(request, Look):
            raise ConfigError("only the process that started an agent may ask that")
        return request

    async def _reply(
        self, work: asyncio.Task[Reply], send: Callable[[Reply], None]
    ) -> None:
        try:
            send(await work)
        except RingleaderError as exc:
            send(Failed(str(exc)))
        except asyncio.CancelledError:
            if not work.cancelled():
                raise  # not the work was, but we are

    async def _answer(self, request: Request, send: Callable[[Reply], None]) -> Reply:
        match request:
            case Enter():
                return await self._jobs.enter(request, lambda t: send(Progress(t)))
            case Serve(round=round_id, port=port):
                self._jobs.serve(round_id, port)
                return Done()
            case Check(job=job):
                return self._jobs.check(job)
            case Quit(job=job, ok=ok):
                await self._jobs.end(job, ok=ok)
                return Done()
            case Look():
                return self._look()


class Window:
    """A Unix socket through which other commands of this user may look."""

    def __init__(self, path: Path, desk: Desk) -> None:
        self._path = path
        self._desk = desk
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen, for this user only."""
        if not hasattr(asyncio, "start_unix_server"):
            return  # Windows: `status` asks over the network instead
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(self._path.parent.stat().st_mode) & 0o077:
            os.chmod(self._path.parent, 0o700)
        for other in self._path.parent.glob("*.sock"):
            if await _is_dead(other):
                _remove(other)

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await self._desk.serve(reader, writer, is_parent=False)

        self._server = await asyncio.start_unix_server(serve, self._path)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            _remove(self._path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


async def _is_dead(path: Path) -> bool:
    """Sockets of agents that were killed stay behind as files."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 1.0)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False
