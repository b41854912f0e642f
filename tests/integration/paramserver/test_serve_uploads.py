"""Several connections that send the same update: it counts once, and is not mixed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ringleader.paramserver.server.http.upload_buffers import UploadBuffer
from tests.kit.param_server import (
    Server,
    WorkerClient,
    expected,
    server,
    update_body,
    weights_in,
)

BODY = update_body(0, 0)


@contextmanager
def sending(client: WorkerClient, begin: int, end: int) -> Iterator[socket.socket]:
    """Open a connection and send a part of the update of version 0."""
    host, port = client.url.removeprefix("http://").split(":")
    lines = [
        "PUT /v1/updates/0/0 HTTP/1.1",
        f"Host: {host}",
        f"Authorization: Bearer {client.token}",
        f"Content-Length: {len(BODY) - begin}",
        *([f"Upload-Offset: {begin}", f"Upload-Length: {len(BODY)}"] if begin else []),
        "X-Samples: 8",
        "X-Loss: 0.5",
        "X-First-Batch: 0",
    ]
    with socket.create_connection((host, int(port)), timeout=120) as line:
        line.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + BODY[begin:end])
        yield line


def upload_of(served: Server) -> UploadBuffer | None:
    return served.run.app.updates.uploads._uploads.get("w1")


def wait_until(condition: Callable[[], bool]) -> None:
    expires_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < expires_s
        time.sleep(0.005)


def has(served: Server, filled: int) -> Callable[[], bool]:
    def is_there() -> bool:
        upload = upload_of(served)
        return upload is not None and upload.filled == filled

    return is_there


def kept(client: WorkerClient) -> int:
    headers = client.headers | {"X-First-Batch": "0"}
    answer = client.http.head("/v1/updates/0/0", headers=headers)
    return int(answer.headers["upload-offset"])


def test_late_bytes_of_a_broken_connection_are_not_mixed_in(
    tmp_path: Path,
) -> None:
    """A tunnel may keep a connection that its worker gave up, and bytes on it."""
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        anna.work()
        with sending(anna, 0, 1000) as old:
            wait_until(has(served, 1000))
            assert kept(anna) == 1000
            with sending(anna, 1000, 1500) as new:
                wait_until(has(served, 1500))
                old.sendall(BODY[1000:1100])
                assert old.recv(12) == b"HTTP/1.1 416"
                new.sendall(BODY[1500:])
                assert new.recv(12) == b"HTTP/1.1 200"
    np.testing.assert_allclose(weights_in(tmp_path), expected(1, 1), atol=1e-5)


def test_a_restarted_upload_ends_the_one_before(tmp_path: Path) -> None:
    with server(tmp_path, rounds=1) as served, served.clients(1) as (anna,):
        anna.work()
        uploads = served.run.app.updates.uploads
        with sending(anna, 0, 1000) as old:
            wait_until(has(served, 1000))
            first = upload_of(served)
            with sending(anna, 0, 500) as new:
                wait_until(has(served, 500))
                assert first is not None
                assert len(first.data) == 0, "its memory is free"
                assert uploads.num_bytes == len(BODY)
                old.sendall(BODY[1000:])
                assert old.recv(12) == b"HTTP/1.1 416"
                new.sendall(BODY[500:])
                assert new.recv(12) == b"HTTP/1.1 200"
        assert uploads.num_bytes == 0
    np.testing.assert_allclose(weights_in(tmp_path), expected(1, 1), atol=1e-5)


def test_an_update_of_a_worker_that_leaves_does_not_count(tmp_path: Path) -> None:
    with server(tmp_path, rounds=1) as served, served.clients(2) as (anna, ben):
        anna.work()
        with sending(anna, 0, 1000) as line:
            wait_until(has(served, 1000))
            left = anna.http.post("/v1/leave", headers=anna.headers)
            assert left.status_code == 204
            line.sendall(BODY[1000:])
            assert line.recv(12) == b"HTTP/1.1 401"
        assert served.training.scheduler.workers["w1"].updates == 0
        assert ben.step() is not None
    np.testing.assert_allclose(weights_in(tmp_path), expected(1, 1), atol=1e-5)


def test_an_update_that_can_no_longer_count_is_not_read_to_its_end(
    tmp_path: Path,
) -> None:
    with server(tmp_path, rounds=2) as served, served.clients(2) as (anna, ben):
        work = anna.work()
        assert work is not None
        with sending(anna, 0, 1000) as line:
            wait_until(has(served, 1000))
            assert ben.work() == work, "it is given to another worker when it is late"
            assert ben.put(work).json()["counted"] is True
            wait_until(lambda: upload_of(served) is None)
            line.sendall(BODY[1000:1100])
            assert line.recv(12) == b"HTTP/1.1 409"
