"""``DashboardServer``: serves the page, its state and its changes, on one event loop.

One request per connection. The number of connections, the size of a request and the
time to read it and to write the answer are bounded. When there are too many of them,
the oldest without a session goes, of the user or address that has the most: whoever
opens many displaces his own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from ringleader.dashboard.access import Access, Session, TooManyAttempts
from ringleader.dashboard.assets import load_assets
from ringleader.dashboard.changes import changes
from ringleader.dashboard.client_source import ClientSource, client_source
from ringleader.dashboard.http_message import (
    MAX_HEAD_BYTES,
    BadRequest,
    EventStream,
    Request,
    check_source,
    event,
    json_response,
    parse_head,
    response,
)
from ringleader.dashboard.page_state import State
from ringleader.errors import RingleaderError

MAX_CONNECTIONS = 64
MAX_PER_SOURCE = 16
"""Connections of one address, or of another user of this machine."""
MAX_OF_OWNER = 48
"""Connections of our own user, whose open pages take ``MAX_STREAMS`` of them."""
MAX_STREAMS = 24
"""Pages that follow the state at the same time; one connection each."""
REQUEST_S = 10.0
ANSWER_S = 40.0
"""To stop a job, all machines are asked."""
WRITE_S = 20.0
"""A page that does not read what is sent for so long is dropped."""
EVERY_S = 1.0
KEEP_ALIVE_S = 15.0
"""A comment is sent when nothing changed for so long: the page sees that we live."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the server gets what it shows."""

    state: Callable[[], Awaitable[State]]
    """Return the state of the page now; called once a second per open page."""
    log_tail: Callable[[str, int], Awaitable[str]]
    """Return the last lines that a rank of a job printed."""
    stop_job: Callable[[str], Awaitable[str]]
    """Stop a job and return a sentence about it."""


@dataclass(slots=True, eq=False)
class _Connection:
    source: ClientSource
    task: asyncio.Task[None]
    has_session: bool = False
    is_dropped: bool = False


class DashboardServer:
    """Serves on one listening socket. Lives on the event loop of the agent."""

    def __init__(
        self,
        access: Access,
        sources: Sources,
        origins: Callable[[], frozenset[str]],
        every_s: float = EVERY_S,
    ) -> None:
        """``origins`` returns our addresses, as ``http://127.0.0.1:4711``."""
        self.access = access
        self._sources = sources
        self._origins = origins
        self._every_s = every_s
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        """The oldest first."""
        self._is_closing = False
        self._num_streams = 0

    async def listen(
        self, sock: socket.socket, tls: ssl.SSLContext | None = None
    ) -> None:
        """Answer connections to ``sock`` until ``close``."""
        self._tls = tls
        self._is_closing = False
        self._server = await asyncio.start_server(
            self._on_connection, sock=sock, limit=MAX_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop listening and end all connections."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        source = client_source(writer.get_extra_info("socket"))
        if not self._make_room(source):
            writer.close()
            return
        made = self._connections[task] = _Connection(source, task)
        try:
            if self._tls is not None:  # here, so that silent handshakes count, too
                async with asyncio.timeout(REQUEST_S):
                    await writer.start_tls(self._tls)
            await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a client that went away, is silent or sends too much
        except asyncio.CancelledError:
            if not (
                self._is_closing or made.is_dropped
            ):  # else asyncio of Python 3.11 prints a traceback
                raise
        finally:
            self._connections.pop(task, None)
            writer.close()

    def _make_room(self, source: ClientSource) -> bool:
        """Return whether a client may have one more connection; drop one for it."""
        is_full, victim = _to_drop(self._connections.values(), source)
        if victim is not None:
            del self._connections[victim.task]
            victim.is_dropped = True
            victim.task.cancel()
        return victim is not None or not is_full

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = parse_head(await reader.readuntil(b"\r\n\r\n"))
                check_source(request, self._origins())
                body = await reader.readexactly(request.body_bytes)
            if request.method == "GET" and request.path == "/events":
                await self._stream(request, reader, writer)
                return
            async with asyncio.timeout(ANSWER_S):
                answer = await self._answer(request, body)
        except BadRequest as exc:
            answer = json_response(exc.status, {"error": exc.text})
        except RingleaderError as exc:  # of a machine that was asked
            answer = json_response(502, {"error": str(exc)})
        async with asyncio.timeout(WRITE_S):
            writer.write(answer)
            await writer.drain()

    async def _answer(self, request: Request, body: bytes) -> bytes:
        match request.method, request.path:
            case "GET", path if path in load_assets():
                return response(200, *load_assets()[path])
            case "POST", "/session":
                return self._open_session(_parse_body(request, body))
            case "GET", "/state":
                self._session(request)
                return json_response(200, await self._sources.state())
            case "GET", "/log":
                self._session(request)
                return await self._log_tail(request)
            case "POST", "/stop":
                return await self._stop(request, _parse_body(request, body))
            case "GET" | "POST", _:
                raise BadRequest(404, "there is nothing here")
        raise BadRequest(405, "use GET or POST")

    def _session(self, request: Request) -> Session:
        found = self.access.find(request.key, time.monotonic())
        if found is None:
            raise BadRequest(401, "the session is over; run 'ringleader dashboard'")
        task = asyncio.current_task()
        if task in self._connections:
            self._connections[task].has_session = True
        return found

    def _open_session(self, body: dict[str, Any]) -> bytes:
        now_s = time.monotonic()
        try:
            if isinstance(token := body.get("token"), str):
                found = self.access.open_by_link(token, now_s)
            elif isinstance(code := body.get("code"), str):
                found = self.access.open_by_code(code, now_s)
            else:
                raise BadRequest(400, "send the token of the link, or a code")
        except TooManyAttempts as exc:
            raise BadRequest(429, "wait a second before the next code") from exc
        if found is None:
            text = "the link or code is wrong or its time is over"
            raise BadRequest(403, f"{text}; run 'ringleader dashboard' for a new one")
        return json_response(200, {"key": found.key, "can_stop": found.can_stop})

    async def _log_tail(self, request: Request) -> bytes:
        try:
            query = parse_qs(request.query, max_num_fields=4)
        except ValueError as exc:
            raise BadRequest(400, "more than four fields") from exc
        job, rank = query.get("job", [""])[0], query.get("rank", ["0"])[0]
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 6):
            raise BadRequest(400, "the rank is not a number")
        return json_response(
            200, {"text": await self._sources.log_tail(job, int(rank))}
        )

    async def _stop(self, request: Request, body: dict[str, Any]) -> bytes:
        if not self._session(request).can_stop:
            raise BadRequest(403, "a shared page only looks; stop it on a machine")
        if not (isinstance(job := body.get("job"), str) and job.isprintable()):
            raise BadRequest(400, "name the job")
        return json_response(200, {"text": await self._sources.stop_job(job)})

    async def _stream(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Send the state, then its changes, until the page goes or its session ends."""
        self._session(request)
        if self._num_streams >= MAX_STREAMS:
            raise BadRequest(503, f"{MAX_STREAMS} pages are open already; close one")
        self._num_streams += 1
        try:
            stream = EventStream(is_gzip=request.accepts_gzip)
            writer.write(stream.head)
            shown: State = {}
            silent_s = 0.0
            while not (writer.is_closing() or reader.at_eof()):
                if self.access.find(request.key, time.monotonic()) is None:
                    return
                state = await self._sources.state()
                found = changes(shown, state)
                await asyncio.sleep(0)  # the answers to others need not wait
                if found or silent_s >= KEEP_ALIVE_S:
                    text = event("changes", found) if found else b": alive\n\n"
                    writer.write(stream.encode(text))
                    silent_s = 0.0
                shown = state
                async with asyncio.timeout(WRITE_S):
                    await writer.drain()
                await asyncio.sleep(self._every_s)
                silent_s += self._every_s
        finally:
            self._num_streams -= 1


def _to_drop(
    connections: Collection[_Connection], source: ClientSource
) -> tuple[bool, _Connection | None]:
    """Return whether all places of a source are taken, and which one can be freed."""
    strangers = [each for each in connections if not each.has_session]
    limit = MAX_OF_OWNER if source.is_owner else MAX_PER_SOURCE
    if sum(1 for each in connections if each.source == source) >= limit:
        of = source
    elif len(connections) < MAX_CONNECTIONS:
        return False, None
    else:
        busiest = Counter(each.source for each in strangers).most_common(1)
        of = busiest[0][0] if busiest else source
    return True, next((each for each in strangers if each.source == of), None)


def _parse_body(request: Request, body: bytes) -> dict[str, Any]:
    if request.headers.get("content-type", "") != "application/json":
        raise BadRequest(415, "send application/json")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadRequest(400, "the body is not JSON") from exc
    if not isinstance(found, dict):
        raise BadRequest(400, "the body is not an object")
    return found
