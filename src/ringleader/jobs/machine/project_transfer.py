"""``receive_project``: takes the files of a job's program, and unpacks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    ProtocolError,
    RingleaderError,
)
from ringleader.jobs.protocol.messages import (
    MAX_MESSAGE_BYTES,
    Chunk,
    ChunksNeeded,
    decode_job_request,
)
from ringleader.node.agent.service_stream import ServiceStream
from ringleader.project import BlobStore, Manifest, missing, unpack
from ringleader.project.blob_store import size_text
from ringleader.project.manifest import decode
from ringleader.settings.project_limit import VARIABLE, project_limit_bytes

CHUNK_S = 120.0
"""How long one chunk of 1 MiB may take: slow Wi-Fi needs some seconds."""


def project_store(home: Path) -> BlobStore:
    """Return the store of this user; what one job brought the next one has."""
    return BlobStore(home / "projects")


async def receive_project(
    stream: ServiceStream,
    manifest: bytes,
    store: BlobStore,
    folder: Path,
    check: Callable[[], None],
) -> None:
    """Take what the store lacks from the client, and write all files to ``folder``.

    Raises ``ProtocolError`` for a list of files that is not allowed, ``ConfigError`` if
    the disk is full, and what ``check`` raises once the client may not do that.
    """
    try:
        files = await asyncio.to_thread(decode, manifest)
    except ValueError as exc:
        raise ProtocolError(stream.who, f"sent {exc}") from None
    lacking = await asyncio.to_thread(_find_missing, files, store)
    await stream.send(ChunksNeeded(lacking))
    problem: RingleaderError | None = None
    for digest in lacking:
        data = await _next_chunk(stream, digest)
        check()
        # After a failure the rest is read, too: a client that is still sending would
        # see a broken connection instead of the reason.
        if problem is None:
            problem = await asyncio.to_thread(_store, store, digest, data, stream.who)
    if problem is not None:
        raise problem
    check()
    await asyncio.to_thread(unpack, files, store, folder)


def _store(
    store: BlobStore, digest: str, data: bytes, who: str
) -> RingleaderError | None:
    """Store a chunk and return why it could not be."""
    try:
        if store.put(digest, data):
            return None
    except ConfigError as exc:
        return exc
    return ProtocolError(who, "sent a damaged part of the program")


def _find_missing(files: Manifest, store: BlobStore) -> list[str]:
    limit_bytes = project_limit_bytes()
    if files.num_bytes > limit_bytes:
        text = f"{size_text(files.num_bytes)}, and takes {size_text(limit_bytes)} only"
        text = f"the project has {text}; set {VARIABLE} where its agent starts"
        raise ConfigError(text)
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
