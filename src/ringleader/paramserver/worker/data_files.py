"""Gets the files of a task from the server into the cache of this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from ringleader.data import listing as listings
from ringleader.data.cached_files import CachedFiles
from ringleader.data.listing import Listing
from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, PeerRefused, ProtocolError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.protocol.join_link import JOIN_SCHEME
from ringleader.paramserver.worker.http_errors import SERVER
from ringleader.paramserver.worker.observer import Observer
from ringleader.paramserver.worker.response_body import ResponseBody
from ringleader.paramserver.worker.session import Request, Response, Session
from ringleader.settings.cache import cache_folder

MAX_DATA_BYTES = 10 * 10**9
"""Largest data that a worker takes from a server unless its user allows more."""
_MAX_LISTING_BYTES = 64 << 20
_LOCK_WAIT_S = 600.0
_TRIES = 3


class DataDownload:
    """Downloads what the cache lacks. One thread."""

    def __init__(
        self,
        session: Session,
        observer: Observer,
        pin: Secret[str] | None,
        ask_pin: Callable[[], Secret[str]] | None,
    ) -> None:
        self.pin = pin
        """The PIN in use: the given one, or the one that the user typed."""
        self._session = session
        self._observer = observer
        self._ask_pin = ask_pin

    def run(self, max_bytes: int) -> Path:
        """Return the local path of the task's files.

        Raises ConfigError if they are too large, or PeerRefused if the server does not
        send them.
        """
        listing = self._listing()
        if (num_bytes := listing.num_bytes) > max_bytes:
            gigabytes = math.ceil(num_bytes / 1e8) / 10
            text = f"the server's data has {num_bytes:,} bytes"
            raise ConfigError(f"{text}; allow it with --max-data {gigabytes:g}")
        copy = CachedFiles(cache_folder(), listing)
        try:
            missing = copy.open(Deadline.after(_LOCK_WAIT_S))
            copy.make_room(missing, max_bytes)
            if missing:
                num_bytes = sum(copy.chunks[n].num_bytes for n in missing)
                text = f"getting {num_bytes:,} bytes of data from the server"
                self._observer.noted(text)
            for number in missing:
                self._get_chunk(copy, number)
            copy.publish()
        finally:
            copy.close()
        return copy.path

    def _listing(self) -> Listing:
        body = ResponseBody(_MAX_LISTING_BYTES)
        response = self._get("/v1/data", body)
        if response.status == 401 and self._ask_pin is not None:
            self.pin = self._ask_pin()
            response = self._get("/v1/data", body)
        if response.status != 200:
            raise PeerRefused(SERVER, response.message())
        try:
            return listings.decode(bytes(body.data))
        except ValueError as exc:
            raise ProtocolError(SERVER, f"it sent {exc}") from None

    def _get_chunk(self, copy: CachedFiles, number: int) -> None:
        chunk = copy.chunks[number]
        for _ in range(_TRIES):
            body = ResponseBody(chunk.num_bytes)
            response = self._get(f"/v1/data/{number}", body)
            if response.status != 200:
                raise PeerRefused(SERVER, response.message())
            if copy.write(number, bytes(body.data)):
                return
        text = f"it sends other bytes of {chunk.file} than it announced"
        raise ProtocolError(SERVER, f"{text}; were its files changed?")

    def _get(self, path: str, body: ResponseBody) -> Response:
        # The request is built for each try: pairing may complete the link in between.
        return self._session.retry(
            lambda: self._session.send_once(self._request(path), body)
        )

    def _request(self, path: str) -> Request:
        code = self._session.address.link.code
        if code is not None:
            return Request(
                "GET", path, {"Authorization": f"{JOIN_SCHEME} {code.reveal()}"}
            )
        pin = {"X-Auth-Pin": self.pin.reveal()} if self.pin else {}
        return Request("GET", path, pin)
