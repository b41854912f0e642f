"""Send buffers: more is asked for only where asking gives more."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ringleader.transport import send_buffer
from ringleader.transport.send_buffer import (
    MOST_BYTES,
    bytes_to_ask_for,
    widen_if_long,
)

MIB = 1 << 20
OLD, NEW = 212_992, 4 * MIB
"""wmem_max of kernels before and after 2025."""


def kernel(folder: Path, wmem_max: int | None, grows_to: int = 4 * MIB) -> Path:
    (folder / "ipv4").mkdir()
    (folder / "core").mkdir()
    (folder / "ipv4/tcp_wmem").write_text(f"4096\t16384\t{grows_to}\n")
    if wmem_max is not None:
        (folder / "core/wmem_max").write_text(f"{wmem_max}\n")
    return folder


@pytest.mark.parametrize(
    ("wmem_max", "grows_to", "asked"),
    [
        (OLD, 4 * MIB, None),
        (NEW, 4 * MIB, NEW),
        (2 * MIB, 4 * MIB, None),
        (NEW, 32 * MIB, None),
        (512 * MIB, 4 * MIB, MOST_BYTES // 2),
        (None, 4 * MIB, None),
    ],
)
def test_a_kernel_is_asked_only_for_more_than_it_gives_by_itself(
    tmp_path: Path, wmem_max: int | None, grows_to: int, asked: int | None
) -> None:
    assert bytes_to_ask_for(kernel(tmp_path, wmem_max, grows_to)) == asked


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked")
@pytest.mark.parametrize(("round_trip_s", "is_long"), [(0.019, False), (0.021, True)])
def test_only_long_links_get_a_larger_buffer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    round_trip_s: float,
    is_long: bool,
) -> None:
    granted = 30_000
    monkeypatch.setattr(send_buffer, "_KERNEL", kernel(tmp_path, granted, 50_000))
    monkeypatch.setattr(send_buffer, "_round_trip_s", lambda _: round_trip_s)
    with socket.socket() as sock:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        widen_if_long(sock)
        after = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert (after != before) == is_long
    assert not is_long or granted <= after <= 2 * granted


def test_a_link_on_this_machine_is_not_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        dialled = socket.create_connection(server.getsockname())
        with dialled, closing(server.accept()[0]) as accepted:
            for sock in (dialled, accepted):
                before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                widen_if_long(sock)
                after = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                assert after == before
