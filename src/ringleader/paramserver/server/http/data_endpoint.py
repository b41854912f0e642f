"""Sends the files of a task to workers that lack them, chunk by chunk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ringleader.data import listing as listings
from ringleader.data.listing import Listing, read_chunk
from ringleader.errors import ConfigError
from ringleader.paramserver.server.http import request_parsing
from ringleader.paramserver.server.http.auth import Authenticator
from ringleader.paramserver.server.http.responses import refusal
from ringleader.paramserver.tasks.task import DataFiles

_log = logging.getLogger(__name__)

_PIECE_BYTES = 256 << 10


class DataEndpoint:
    """Handles requests for the list of files and for their chunks."""

    def __init__(self, auth: Authenticator, data: DataFiles | None) -> None:
        self._auth = auth
        self._data = data
        self._listing = _list(data) if data else None
        self._chunks = self._listing.chunks() if self._listing else []
        self._encoded = listings.encode(self._listing) if self._listing else b""

    async def listing(self, request: Request) -> Response:
        """Send the names, sizes and hashes of all files."""
        self._auth.authenticate_reader(request)
        if self._listing is None:
            text = "it has no files to send; pass --task with your own copy"
            raise refusal(404, "nothing", text)
        return Response(self._encoded, media_type="application/json")

    async def chunk(self, request: Request) -> Response:
        """Send the chunk with a number."""
        self._auth.authenticate_reader(request)
        text = request.path_params["chunk"]
        number = request_parsing.parse_number(text, "the chunk")
        if self._listing is None or self._data is None or number >= len(self._chunks):
            raise refusal(404, "nothing", f"there is no chunk {number}")
        chunk = self._chunks[number]
        path = self._listing.path_of(self._data.root, chunk.file)
        data = await asyncio.to_thread(read_chunk, path, chunk)
        if data is None:
            raise refusal(404, "nothing", f"{chunk.file} has changed on the server")
        headers = {"Content-Length": str(len(data))}
        kind = "application/octet-stream"
        return StreamingResponse(_pieces(data), headers=headers, media_type=kind)


def _list(data: DataFiles) -> Listing | None:
    """Return the files; None if they cannot be sent, which need not stop the server."""
    try:
        return listings.list_files(data.root, data.names)
    except ConfigError as exc:
        _log.warning("workers need a copy of the data, which cannot be sent: %s", exc)
        return None


async def _pieces(data: bytes) -> AsyncIterator[memoryview]:
    view = memoryview(data)
    for begin in range(0, len(view), _PIECE_BYTES):
        yield view[begin : begin + _PIECE_BYTES]
