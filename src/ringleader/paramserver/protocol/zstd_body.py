"""zstd frames, and bodies that may or may not be one."""

from __future__ import annotations

import sys
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

__all__ = ["MAGIC", "WINDOW_LOG", "compress", "join", "pack", "unpack"]

MAGIC = b"\x28\xb5\x2f\xfd"
WINDOW_LOG = 23
"""Frames that want more memory than 8 MiB are refused; our own levels want less."""
_PIECE_BYTES = 1 << 20
_LEVEL = 1
"""Gradients are noise: higher levels cost five times as long and save nothing."""
_SAMPLE_BYTES = 1 << 17
_WORTH = 0.9
"""Compress only what becomes this much smaller: float32 gradients do not (0.93), and
would cost both sides more time than a fast line does."""


def pack(pieces: Sequence[bytes | memoryview]) -> memoryview:
    """The pieces as one body, a zstd frame if a sample says that it is worth it."""
    body = join(pieces)
    middle = len(body) // 2
    sample = body[middle : middle + _SAMPLE_BYTES]
    if len(compress(sample, _LEVEL)) > _WORTH * len(sample):
        return body
    packed = _compress(body)
    return packed if len(packed) < len(body) else body


def _compress(body: memoryview) -> memoryview:
    """One frame, made of pieces: the library glues its output with the GIL held."""
    compressor = ZstdCompressor(level=_LEVEL)
    pieces = [
        compressor.compress(body[i : i + _PIECE_BYTES])
        for i in range(0, len(body), _PIECE_BYTES)
    ]
    return join([*pieces, compressor.flush()])


def join(pieces: Sequence[bytes | memoryview]) -> memoryview:
    """All pieces in a row. numpy copies without the GIL, which ``bytes.join`` keeps:
    for 100 MB that stopped every other thread for 60 to 100 ms."""
    whole = np.empty(sum(len(piece) for piece in pieces), np.uint8)
    begin = 0
    for piece in pieces:
        whole[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
        begin += len(piece)
    return whole.data


def unpack(body: bytes | bytearray | memoryview, max_bytes: int) -> memoryview:
    """What a body holds, at most ``most_bytes``; ValueError for anything else."""
    view = memoryview(body)
    if view[: len(MAGIC)] == MAGIC:
        return memoryview(_decompress(view, max_bytes))
    if len(view) > max_bytes:
        raise ValueError(f"{len(view)} bytes, which is more than {max_bytes}")
    return view


def _decompress(frame: memoryview, max_bytes: int) -> bytearray:
    """Piece by piece: a bomb is noticed one piece after the limit."""
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
                raise ValueError("a zstd frame that breaks off")
    except ZstdError as exc:
        raise ValueError(f"a zstd frame that is none: {exc}"[:200]) from None
    if decompressor.unused_data:
        raise ValueError("something behind the zstd frame")
    return out
