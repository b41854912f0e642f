"""``receive_project``: takes the files of a job's program, and unpacks them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ringleader.errors import DeadlineExceeded, ProtocolError
from ringleader.jobs.protocol.messages import (
    MAX_MESSAGE_BYTES,
    Chunk,
    ChunksNeeded,
    decode_job_request,
)
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import BlobStore, Manifest, missing, unpack
from ringleader.project.manifest import decode

CHUNK_S = 120.0
"""How long one chunk of 1 MiB may take: slow Wi-Fi needs some seconds."""


def project_store(home: Path) -> BlobStore:
    """Return the store of this user; what one job brought the next one has."""
    return BlobStore(home / "projects")


async def receive_project(
    stream: ServiceStream, manifest: bytes, store: BlobStore, folder: Path
) -> None:
    """Take what the store lacks from the client, and write all files to ``folder``.

    Raises ``ProtocolError`` for a list of files that is not allowed, and
    ``ConfigError`` if the disk is full.
    """
    try:
        files = await asyncio.to_thread(decode, manifest)
    except ValueError as exc:
        raise ProtocolError(stream.who, f"sent {exc}") from None
    lacking = await asyncio.to_thread(_find_missing, files, store)
    await stream.send(ChunksNeeded(lacking))
    for digest in lacking:
        data = await _next_chunk(stream, digest)
        if not await asyncio.to_thread(store.put, digest, data):
            raise ProtocolError(stream.who, "sent a damaged part of the program")
    await asyncio.to_thread(unpack, files, store, folder)


def _find_missing(files: Manifest, store: BlobStore) -> list[str]:
    store.evict()
    lacking = missing(files, store)
    store.check_room(sum(lacking.values()) + files.num_bytes)
    return list(lacking)


async def _next_chunk(stream: ServiceStream, digest: str) -> bytes:
    try:
        async with asyncio.timeout(CHUNK_S):
            body = await stream.read(MAX_MESSAGE_BYTES)
    except TimeoutError as exc:
        text = f"sent no part of the program for {CHUNK_S:g} s"
        raise DeadlineExceeded(stream.who, text) from exc
    request = decode_job_request(body, stream.who)
    if not isinstance(request, Chunk) or request.digest != digest:
        raise ProtocolError(stream.who, "sent another part of the program than asked")
    return request.data
