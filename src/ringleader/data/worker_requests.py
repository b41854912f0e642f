"""Lets the worker processes of a DataLoader ask the training process for blocks.

Workers cannot use the process group. They connect to a Unix socket of the training
process, send the number of a block, and get an answer when it is in the cache.
"""

from __future__ import annotations

import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ringleader.errors import PeerFailed

_NUMBER = struct.Struct("<q")
_ANSWER_S = 600.0
"""More than the training process waits itself, so that its error arrives."""


class RequestServer:
    """Answers workers in threads; ``ensure(block)`` brings a block into the cache."""

    def __init__(self, ensure: Callable[[int], None]) -> None:
        self._ensure = ensure
        self._socket: socket.socket | None = None
        self._folder = ""

    def start(self) -> str:
        """Begin to answer; return the path of the socket."""
        # Not in the cache: the path of a socket has at most about 100 bytes.
        self._folder = tempfile.mkdtemp(prefix="ringleader-")
        path = str(Path(self._folder) / "data")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(64)
        _start(self._accept, self._socket)
        return path

    def close(self) -> None:
        """Stop, and remove the socket."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                _start(self._answer, listening.accept()[0])

    def _answer(self, worker: socket.socket) -> None:
        with worker, suppress(OSError), worker.makefile("rwb") as stream:
            while request := stream.read(_NUMBER.size):
                error = b""
                try:
                    self._ensure(*_NUMBER.unpack(request))
                except Exception as exc:  # noqa: BLE001  # raised in the worker
                    error = str(exc).encode(errors="replace")
                stream.write(_NUMBER.pack(len(error)) + error)
                stream.flush()


class RequestClient:
    """Asks the training process. One thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def ensure(self, block: int) -> None:
        """Return when the block is in the cache.

        Raises PeerFailed, with the reason, if the training process cannot get it.
        """
        who = "the training process"
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.settimeout(_ANSWER_S)
                self._socket.connect(self._path)
            self._socket.sendall(_NUMBER.pack(block))
            (length,) = _NUMBER.unpack(self._read(_NUMBER.size))
            error = self._read(length)
        except OSError as exc:
            raise PeerFailed(who, f"does not answer its DataLoader: {exc}") from exc
        if error:
            raise PeerFailed(who, error.decode(errors="replace"))

    def _read(self, num_bytes: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < num_bytes:
            piece = self._socket.recv(num_bytes - len(data))
            if not piece:
                raise ConnectionResetError("it has ended")
            data += piece
        return data


def _start(target: Callable[[socket.socket], None], argument: socket.socket) -> None:
    name = "ringleader-data-workers"
    threading.Thread(target=target, args=(argument,), name=name, daemon=True).start()
