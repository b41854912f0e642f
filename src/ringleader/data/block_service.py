"""Blocks of a dataset over a process group of their own: one rank sends, others ask.

A request is the number of a block. The answer is a header (length and SHA-256), then
the block. Instead of a block that cannot be read, the reason is sent, with a negative
length. A rank has one request under way at a time. These are messages of torch's
process groups and not calls of ``rpc``, so that data is served on every backend that
sends CPU tensors.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from ringleader.data.item_block import check
from ringleader.errors import (
    ConfigError,
    DeadlineExceeded,
    PeerFailed,
    ProtocolError,
    RingleaderError,
)

_log = logging.getLogger(__name__)

MAX_BLOCK_BYTES = 1 << 30
"""Largest block that is accepted. An item is not larger than its block."""

_REQUEST, _HEADER, _BODY = 1, 2, 3
"""Tags of the messages."""
_LAYOUT = struct.Struct("<q32s")
_MAX_REASON_BYTES = 2000
_TRIES = 3


class BlockServer:
    """Answers requests for blocks in a thread, until the group ends."""

    def __init__(
        self, group: dist.ProcessGroup, blocks: int, make: Callable[[int], bytes]
    ) -> None:
        self._group = group
        self._blocks = blocks
        self._make = make
        self._sending: dict[int, list[tuple[dist.Work | None, torch.Tensor]]] = {}

    def start(self) -> None:
        """Begin to answer."""
        # A daemon: it waits for requests as long as the group lives.
        thread = threading.Thread(target=self._run, name="ringleader-data", daemon=True)
        thread.start()

    def _run(self) -> None:
        while True:
            try:
                wanted = torch.empty(1, dtype=torch.int64)
                work = dist.irecv(wanted, group=self._group, tag=_REQUEST)
                assert work is not None
                work.wait()
                self._answer(work._source_rank(), int(wanted))
            except DeadlineExceeded:
                continue  # nobody has asked for a while
            except (RuntimeError, ValueError, AssertionError) as exc:
                _log.debug("the group of the data has ended: %s", exc)
                return

    def _answer(self, target: int, number: int) -> None:
        sign, data = 1, b""
        try:
            if not 0 <= number < self._blocks:
                raise ConfigError(f"there is no block {number}")
            data = self._make(number)
        except Exception as exc:  # noqa: BLE001  # the user's dataset can raise anything
            _log.warning("rank %d was not served: %s", target, exc)
            sign, data = -1, _reason(exc)
        header = _LAYOUT.pack(sign * len(data), hashlib.sha256(data).digest())
        for work, _ in self._sending.pop(target, ()):  # it has asked again: received
            if work is not None:
                work.wait()
        self._sending[target] = [
            self._send(header, target, _HEADER),
            self._send(data, target, _BODY),
        ]

    def _send(
        self, data: bytes, target: int, tag: int
    ) -> tuple[dist.Work | None, torch.Tensor]:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        work = dist.isend(tensor, group=self._group, group_dst=target, tag=tag)
        return work, tensor


class BlockClient:
    """Asks one rank for blocks. One thread at a time."""

    def __init__(self, group: dist.ProcessGroup, source: int, timeout_s: float) -> None:
        self._group = group
        self._source = source
        self._timeout_s = timeout_s
        self._asked: int | None = None
        """The block whose answer has not come yet. It comes before that of the next
        request, also if the wait for it has ended with an error."""
        self._header: bytes | None = None
        """The first part of that answer."""
        self._receiving: tuple[dist.Work, torch.Tensor] | None = None

    def fetch(self, number: int, count: int) -> bytes:
        """Return a block of ``count`` items.

        Raises PeerLost or DeadlineExceeded if the rank does not answer, PeerFailed if
        its dataset raised, ProtocolError if it sends damaged blocks again and again.
        """
        reason = ""
        for _ in range(_TRIES):
            block = self._ask(number)
            try:
                check(block, count)
            except ValueError as exc:
                reason = str(exc)
            else:
                return block
        raise ProtocolError(self._source, f"sent block {number} damaged: {reason}")

    def _ask(self, number: int) -> bytes:
        if self._asked not in (None, number):
            with suppress(PeerFailed):  # nobody waits for that block any more
                self._answer()
        if self._asked is None:
            wanted = torch.tensor([number], dtype=torch.int64)
            dist.isend(wanted, group=self._group, group_dst=self._source, tag=_REQUEST)
            self._asked = number
        return self._answer()

    def _answer(self) -> bytes:
        """Return the block that was asked for, or nothing if it is damaged.

        After DeadlineExceeded another call goes on with the same answer.
        """
        if self._header is None:
            self._header = self._receive(_LAYOUT.size, _HEADER)
        num_bytes, digest = _LAYOUT.unpack(self._header)
        limit = MAX_BLOCK_BYTES if num_bytes >= 0 else _MAX_REASON_BYTES
        if not 0 < abs(num_bytes) <= limit:
            raise ProtocolError(self._source, f"announces {num_bytes} bytes")
        data = self._receive(abs(num_bytes), _BODY)
        self._asked = self._header = None
        if num_bytes < 0:
            raise PeerFailed(self._source, data.decode(errors="replace"))
        if hashlib.sha256(data).digest() != digest:
            return b""
        return data

    def _receive(self, num_bytes: int, tag: int) -> bytes:
        if self._receiving is None:
            data = torch.empty(num_bytes, dtype=torch.uint8)
            work = dist.irecv(data, group=self._group, group_src=self._source, tag=tag)
            assert work is not None
            self._receiving = work, data
        work, data = self._receiving
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        except DeadlineExceeded as exc:
            if work.is_completed():  # by the time limit of the group: it is cancelled
                self._receiving = None
            text = f"did not send data within {self._timeout_s:g} s"
            raise DeadlineExceeded(self._source, text) from exc
        self._receiving = None
        return data.numpy().tobytes()


def _reason(exc: Exception) -> bytes:
    text = (
        str(exc) if isinstance(exc, RingleaderError) else f"{type(exc).__name__}: {exc}"
    )
    return text.encode(errors="replace")[:_MAX_REASON_BYTES] or b"?"
