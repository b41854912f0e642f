"""Compresses bodies where it pays, and decompresses them within limits.

Ours are compressed by zstd. gzip is for clients of others, in languages without zstd.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Sequence

import numpy as np

if sys.version_info >= (3, 14):
    from compression.zstd import (
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        compress,
    )
else:
    from backports.zstd import (
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdError,
        compress,
    )

__all__ = ["FRAMES", "MAGIC", "WINDOW_LOG", "compress", "join", "pack", "unpack"]

FRAMES = ("zstd", "gzip", "none")
"""What weights may be compressed by."""
MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_LEVEL = 1
_GZIP = 16 + zlib.MAX_WBITS
"""What tells zlib to expect the head and the checksum of gzip."""
WINDOW_LOG = 23
"""Frames that need a window above 8 MiB are refused; the level used here needs less."""
_PIECE_BYTES = 1 << 20
_LEVEL = 1
"""Gradients are noise: higher levels take five times as long and save nothing."""
_SAMPLE_BYTES = 1 << 17
_MAX_RATIO = 0.9
"""A body is compressed only if it gets this much smaller. float32 gradients do not
(0.93): compressing them would take both sides longer than a fast connection saves."""


def pack(pieces: Sequence[bytes | memoryview], frame: str = "zstd") -> memoryview:
    """Join the pieces to one body; compress it if a sample of it compresses well."""
    body = join(pieces)
    if frame == "none":
        return body
    middle = len(body) // 2
    sample = body[middle : middle + _SAMPLE_BYTES]
    if len(compress(sample, _LEVEL)) > _MAX_RATIO * len(sample):
        return body
    packed = _compress(body) if frame == "zstd" else _gzip(body)
    return packed if len(packed) < len(body) else body


def _compress(body: memoryview) -> memoryview:
    """Compress in pieces, because the library joins its output with the GIL held."""
    compressor = ZstdCompressor(level=_LEVEL)
    pieces = [
        compressor.compress(body[i : i + _PIECE_BYTES])
        for i in range(0, len(body), _PIECE_BYTES)
    ]
    return join([*pieces, compressor.flush()])


def _gzip(body: memoryview) -> memoryview:
    return memoryview(gzip.compress(body, _GZIP_LEVEL, mtime=0))


def join(pieces: Sequence[bytes | memoryview]) -> memoryview:
    """Join the pieces.

    numpy copies without the GIL. ``bytes.join`` holds it: for 100 MB that stopped every
    other thread for 60 to 100 ms.
    """
    whole = np.empty(sum(len(piece) for piece in pieces), np.uint8)
    begin = 0
    for piece in pieces:
        whole[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
        begin += len(piece)
    return whole.data


def unpack(body: bytes | bytearray | memoryview, max_bytes: int) -> memoryview:
    """Return the content of a body.

    Raises ValueError if it is longer than ``max_bytes`` or not a valid frame.
    """
    view = memoryview(body)
    if view[: len(MAGIC)] == MAGIC:
        return memoryview(_decompress(view, max_bytes))
    # A header of safetensors may be as long as these bytes say, and begins with "{".
    if view[: len(_GZIP_MAGIC)] == _GZIP_MAGIC and bytes(view[8:9]) != b"{":
        return memoryview(_gunzip(view, max_bytes))
    if len(view) > max_bytes:
        raise ValueError(f"{len(view)} bytes, which is more than {max_bytes}")
    return view


def _decompress(frame: memoryview, max_bytes: int) -> bytearray:
    """Decompress in pieces, so that at most one piece is beyond the limit."""
    options: dict[int, int] = {DecompressionParameter.window_log_max: WINDOW_LOG}
    decompressor = ZstdDecompressor(options=options)
    out = bytearray()
    feed: bytes | memoryview = frame
    try:
        while not decompressor.eof:
            want = min(_PIECE_BYTES, max_bytes - len(out) + 1)
            piece = decompressor.decompress(feed, want)
            feed = b""
            out += piece
            if len(out) > max_bytes:
                raise ValueError(f"a zstd frame of more than {max_bytes} bytes")
            if not piece and decompressor.needs_input:
                raise ValueError("a zstd frame that is incomplete")
    except ZstdError as exc:
        raise ValueError(f"not a valid zstd frame: {exc}"[:200]) from None
    if decompressor.unused_data:
        raise ValueError("bytes follow the zstd frame")
    return out


def _gunzip(frame: memoryview, max_bytes: int) -> bytes:
    """Decompress one member with its checksum, at most ``max_bytes``."""
    decompressor = zlib.decompressobj(_GZIP)
    try:
        out = decompressor.decompress(frame, max_bytes + 1)
    except zlib.error as exc:
        raise ValueError(f"not a valid gzip frame: {exc}"[:200]) from None
    if len(out) > max_bytes:
        raise ValueError(f"a gzip frame of more than {max_bytes} bytes")
    if not decompressor.eof:
        raise ValueError("a gzip frame that is incomplete")
    if decompressor.unused_data:
        raise ValueError("bytes follow the gzip frame")
    return out
