"""``RequestHandler``: answers the requests of processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import FIRST_COMPLETED
from collections.abc import Callable

from ringleader.errors import ConfigError, PeerLost, RingleaderError
from ringleader.node.agent.job_client import JobClient
from ringleader.node.agent.jobs import Jobs
from ringleader.node.agent.run_workers import RunWorkers
from ringleader.node.agent.services import Services
from ringleader.node.protocol import framing
from ringleader.node.protocol.local_requests import (
    CheckRound,
    EndRun,
    EnterJob,
    FinishRound,
    FollowRun,
    GetSnapshot,
    LeaveJob,
    Progress,
    Reply,
    ReportFailure,
    Request,
    RequestDone,
    RequestFailed,
    RoundComplete,
    StoreOpened,
    UseService,
    decode_request,
)
from ringleader.node.protocol.snapshot import Snapshot

CLIENT = "a local process"
MAX_REQUEST_BYTES = 64 << 10


class RequestHandler:
    """Answers requests, one at a time per connection."""

    def __init__(
        self, jobs: Jobs, services: Services, snapshot: Callable[[], Snapshot]
    ) -> None:
        self._jobs = jobs
        self._services = services
        self._workers = RunWorkers(jobs)
        self._snapshot = snapshot
        self.is_resident = False
        """Whether any process of this user may take part in jobs through the agent."""

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_parent: bool,
    ) -> None:
        """Answer until the client closes.

        Only the parent may send job requests; others may follow what happens. Of a
        resident agent any process of this user may, and its jobs end with it.
        """

        def send(reply: Reply) -> None:
            writer.write(framing.pack(reply))

        client = JobClient(self._jobs, is_parent=is_parent)
        coming = asyncio.create_task(self._next(reader, client))
        try:
            while True:
                request = await coming
                if isinstance(request, UseService):
                    await self._services.serve_local(request, reader, writer)
                    return
                # Read ahead: a client that closes or asks again stops waiting.
                coming = asyncio.create_task(self._next(reader, client))
                work = asyncio.create_task(self._answer(request, client, send))
                await asyncio.wait([work, coming], return_when=FIRST_COMPLETED)
                if not work.done() and isinstance(request, EnterJob | FollowRun):
                    work.cancel()
                await self._reply(work, send)
                await writer.drain()
        except (PeerLost, OSError):
            pass  # the client has closed the connection
        except RingleaderError as exc:
            send(RequestFailed.of(exc))
        finally:
            coming.cancel()
            client.close()
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _next(self, reader: asyncio.StreamReader, client: JobClient) -> Request:
        body = await framing.read(reader, CLIENT, MAX_REQUEST_BYTES)
        request = decode_request(body)
        if client.is_parent and isinstance(request, UseService):
            raise ConfigError("a service needs a connection of its own")
        is_open = isinstance(request, GetSnapshot | FollowRun | EndRun | UseService)
        if not is_open and not client.is_parent and not self.is_resident:
            raise ConfigError("only the process that started the agent may ask that")
        return request

    async def _reply(
        self, work: asyncio.Task[Reply], send: Callable[[Reply], None]
    ) -> None:
        try:
            send(await work)
        except RingleaderError as exc:
            send(RequestFailed.of(exc))
        except asyncio.CancelledError:
            if not work.cancelled():
                raise  # this task was cancelled, not ``work``

    async def _answer(
        self, request: Request, client: JobClient, send: Callable[[Reply], None]
    ) -> Reply:
        client.check(request)
        match request:
            case EnterJob():
                client.claim(request.job)
                return await self._jobs.enter(request, lambda t: send(Progress(t)))
            case LeaveJob(job=job, ok=ok):
                await self._jobs.leave(job, ok=ok)
                return RequestDone()
            case CheckRound(job=job):
                return self._jobs.check(job)
            case FollowRun():
                await self._workers.follow(request, send)
                return RequestDone()
            case GetSnapshot():
                return self._snapshot()
            case UseService():
                raise AssertionError("handed over by ``serve``")
            case _:
                self._note(request)
                return RequestDone()

    def _note(
        self,
        request: StoreOpened | RoundComplete | ReportFailure | FinishRound | EndRun,
    ) -> None:
        match request:
            case StoreOpened(round=round_id, port=port):
                self._jobs.open_store(round_id, port)
            case RoundComplete(round=round_id):
                self._jobs.note_complete(round_id)
            case ReportFailure(failure=failure):
                self._jobs.reports.add_failure(failure)
            case FinishRound(job=job, ok=ok):
                self._jobs.finish(job, ok=ok)
            case EndRun(job=job, history=history):
                self._jobs.end_run(job, history)
