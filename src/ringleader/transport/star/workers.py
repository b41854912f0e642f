"""Workers: the workers that take part in a star, as its hub knows them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from ringleader.transport.star.channel import host_of
from ringleader.transport.star.member import VERSION, Member
from ringleader.transport.star.v1 import star_pb2 as messages
from ringleader.wire import hello as wire


@dataclass(slots=True, eq=False)
class Worker:
    """A worker that takes part."""

    rank: int
    token: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    notices: asyncio.Queue[messages.Notice] = field(default_factory=asyncio.Queue)


class Workers:
    """Lets workers in, one per rank, and finds them by rank or token."""

    def __init__(self, member: Member, accepts: Callable[[str], bool] | None) -> None:
        self._member = member
        self._accepts = accepts
        self._by_rank: dict[int, Worker] = {}
        self._changed = asyncio.Condition()
        self._leaving: set[asyncio.Task[None]] = set()
        self.is_closing = False

    async def attach(self, request: messages.AttachRequest, context: Any) -> None:  # noqa: ANN401
        """Serve one worker: its token, then a notice of each connection to it."""
        refusal = self._refusal(request, context.peer())
        if refusal is not None:
            await context.abort(*refusal)
        worker = self._by_rank[request.rank] = Worker(request.rank)
        try:
            welcome = messages.Welcome(token=worker.token)
            await context.write(messages.Notice(welcome=welcome))
            await self._notify()
            while True:
                await context.write(await worker.notices.get())
        except grpc.aio.BaseError:
            pass  # the worker has gone
        finally:
            del self._by_rank[worker.rank]
            task = asyncio.ensure_future(self._notify())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def _refusal(
        self, request: messages.AttachRequest, peer: str
    ) -> tuple[grpc.StatusCode, str] | None:
        """Return the code and the reason if a worker is not let in."""
        if self.is_closing:  # a new star may begin here; the worker tries again
            return grpc.StatusCode.UNAVAILABLE, "rank 0 is leaving this star"
        if self._accepts is not None and not self._accepts(host_of(peer)):
            text = "nothing encrypts this star, so it is for its own machine only"
            return grpc.StatusCode.PERMISSION_DENIED, text
        status = self._judge(request)
        if status is wire.Status.OK:
            return None
        code = grpc.StatusCode.FAILED_PRECONDITION
        if status is wire.Status.DUPLICATE:
            code = grpc.StatusCode.ALREADY_EXISTS
        return code, wire.EXPLANATION[status]

    def _judge(self, request: messages.AttachRequest) -> wire.Status:
        if request.version != VERSION:
            return wire.Status.BAD_VERSION
        if request.namespace != self._member.namespace:
            return wire.Status.WRONG_NAMESPACE
        if request.size != self._member.size:
            return wire.Status.WRONG_SIZE
        is_rank = 0 < request.rank < self._member.size
        if request.world != self._member.world or not is_rank:
            return wire.Status.WRONG_RANK
        if request.rank in self._by_rank:
            return wire.Status.DUPLICATE
        return wire.Status.OK

    async def _notify(self) -> None:
        """Wake those who wait for a worker to come or to go."""
        async with self._changed:
            self._changed.notify_all()

    async def find(self, token: bytes, context: Any) -> Worker:  # noqa: ANN401
        """Return the worker with a token; else end the call."""
        for worker in self._by_rank.values():
            if secrets.compare_digest(worker.token, token):
                return worker
        text = "the token of the call belongs to no worker that takes part"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
        raise AssertionError("abort raises")

    async def wait_for(self, rank: int) -> Worker:
        """Return the worker with a rank, once it takes part."""
        async with self._changed:
            await self._changed.wait_for(lambda: rank in self._by_rank)
        return self._by_rank[rank]

    async def wait_until_gone(self, within_s: float) -> None:
        """Let nobody in any more, and wait until all have left, or time is up."""
        self.is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: not self._by_rank)
