"""The body of an answer while it arrives: bounded, and kept when the line breaks."""

from __future__ import annotations

import re

import httpx2

from ringleader.errors import PeerLost, ProtocolError
from ringleader.paramserver.worker.server_messages import SERVER

_RANGE = re.compile(r"bytes ([0-9]{1,18})-")


class ResponseBody:
    """Bytes so far, and the tag of what they are the beginning of."""

    def __init__(self, limit_bytes: int) -> None:
        self.data = bytearray()
        self.etag = ""
        self.limit_bytes = limit_bytes

    def resume_headers(self) -> dict[str, str]:
        """The headers that ask for the rest; none if there is nothing to go on from."""
        if not (self.data and self.etag):
            return {}
        return {"Range": f"bytes={len(self.data)}-", "If-Range": self.etag}

    def begin(self, status: int, headers: httpx2.Headers) -> None:
        """An answer begins: the rest of what we have, or something new."""
        if status != 206:
            self.data.clear()
            etag = headers.get("ETag", "")
            self.etag = etag if etag.isascii() else ""  # we could not send it back
            return
        found = _RANGE.match(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != len(self.data):
            self.data.clear()
            raise PeerLost(SERVER, "it went on at another place than we asked for")

    def add(self, block: bytes) -> None:
        """The next bytes."""
        if len(self.data) + len(block) > self.limit_bytes:
            text = f"an answer has more than {self.limit_bytes} bytes"
            raise ProtocolError(SERVER, text)
        self.data += block
