"""The body of a response: bounded, and kept for resuming if the connection breaks."""

from __future__ import annotations

import re

import httpx2

from ringleader.errors import PeerLost, ProtocolError
from ringleader.paramserver.worker.http_errors import SERVER

_RANGE = re.compile(r"bytes ([0-9]{1,18})-")


class ResponseBody:
    """The bytes that have arrived, and the ETag of the whole body."""

    def __init__(self, limit_bytes: int) -> None:
        self.data = bytearray()
        self.etag = ""
        self.limit_bytes = limit_bytes

    def resume_headers(self) -> dict[str, str]:
        """Return the headers that ask for the rest; empty if nothing can be resumed."""
        if not (self.data and self.etag):
            return {}
        return {"Range": f"bytes={len(self.data)}-", "If-Range": self.etag}

    def begin(self, status: int, headers: httpx2.Headers) -> None:
        """Begin a response: the rest of the body (206), or a new one."""
        if status != 206:
            self.data.clear()
            etag = headers.get("ETag", "")
            self.etag = etag if etag.isascii() else ""  # else it cannot be sent back
            return
        found = _RANGE.match(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != len(self.data):
            self.data.clear()
            raise PeerLost(SERVER, "it resumed the download at another offset")

    def add(self, block: bytes) -> None:
        """Append a block; ProtocolError if the body gets longer than its limit."""
        if len(self.data) + len(block) > self.limit_bytes:
            text = f"a response has more than {self.limit_bytes} bytes"
            raise ProtocolError(SERVER, text)
        self.data += block
