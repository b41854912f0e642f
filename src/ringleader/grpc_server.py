"""``new_server``: gRPC's asyncio server, which no call of a stranger ends.

The one of grpcio 1.85.1 decodes the path of each call whose method is not registered in
the loop that accepts calls: a path that is no UTF-8 raises there and ends the server,
for everybody, while the process lives. Our stubs register all methods, and gRPC's core
compares their paths as bytes; so here no other call reaches that loop. It is refused
with what the loop would answer, UNIMPLEMENTED.

That takes names which grpcio does not promise; it is the way that disturbs nobody. To
start another server afterwards ends the calls of all others, again with each such call,
and the synchronous ``grpc.server``, which decodes with care, needs a thread for each
open stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc
from grpc._cython import cygrpc
from grpc.aio import _server as grpc_aio


def new_server(
    options: Sequence[tuple[str, object]], max_calls: int | None = None
) -> grpc.aio.Server:
    """Return what ``grpc.aio.server`` returns, for services of generated stubs."""
    return _Server(options, max_calls)


class _Server(grpc_aio.Server):  # type: ignore[misc]  # gRPC has no types
    def __init__(
        self, options: Sequence[tuple[str, object]], max_calls: int | None
    ) -> None:
        self._loop = cygrpc.get_working_loop()
        self._server = _Accepting(self._loop, None, (), (), tuple(options), max_calls)


class _Accepting(cygrpc.AioServer):  # type: ignore[misc]  # gRPC has no types
    """Asked by gRPC's loop for the next call of a method, or of none (None)."""

    def __init__(self, *settings: object) -> None:
        super().__init__(*settings)
        self._refusals: set[asyncio.Task[None]] = set()  # the event loop keeps none

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is None:
            return asyncio.ensure_future(self._refuse_all())
        future: asyncio.Future[Any] = super()._make_request_call_future(method)
        return future

    async def _refuse_all(self) -> None:
        """Refuse the calls whose method is not registered; ends by an exception."""
        while True:
            refusal = asyncio.ensure_future(_refuse(await self._request_call()))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)


async def _refuse(call: object) -> None:
    loop = asyncio.get_running_loop()
    context = cygrpc._ServicerContext(call, None, None, loop)
    with suppress(grpc.aio.BaseError):  # also how abort ends; or the client has gone
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
