"""Gives the sockets of long links a larger send buffer, where the kernel grants one.

What is sent stays in the buffer until the peer has acknowledged it, one round trip
later, so a link sends at most a buffer in that time. Linux lets buffers grow by itself,
on most machines up to 4 MiB: 1 Gbit/s with a round trip of 30 ms. A program may ask for
up to ``wmem_max``, of which the kernel makes twice as much: 8 MiB where it is 4 MiB, as
in new kernels. Where it is 208 KiB, as in older ones, asking would give less than not
asking. See docs/decisions/0028-socket-buffers.md.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Final

LONG_S: Final = 0.02
"""From this round trip on 4 MiB hold back a link of 1 Gbit/s, or nearly."""
MOST_BYTES: Final = 16 << 20
"""No link gets more, the kernel's doubling included."""
_KERNEL: Final = Path("/proc/sys/net")
_ROUND_TRIP_AT: Final = 68
"""Place of the smoothed round trip, in microseconds, in Linux's struct tcp_info."""


def widen_if_long(sock: socket.socket) -> None:
    """Enlarge the send buffer of a connected TCP socket whose round trip is long."""
    if sys.platform != "linux" or _round_trip_s(sock) < LONG_S:
        return
    asked = bytes_to_ask_for(_KERNEL)
    if asked is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, asked)


def bytes_to_ask_for(kernel: Path) -> int | None:
    """Return what SO_SNDBUF is to be set to, or None where the kernel's own is better.

    ``kernel`` is the folder with the network settings of the kernel.
    """
    try:
        grows_to = int((kernel / "ipv4/tcp_wmem").read_text().split()[-1])
        granted = int((kernel / "core/wmem_max").read_text())
    except OSError:  # containers may hide them: then nobody knows what asking gives
        return None
    asked = min(granted, MOST_BYTES // 2)
    return asked if 2 * asked > grows_to else None


def _round_trip_s(sock: socket.socket) -> float:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_AT + 4)
    if len(info) < _ROUND_TRIP_AT + 4:  # an emulated Linux may know less
        return 0.0
    (microseconds,) = struct.unpack_from("=I", info, _ROUND_TRIP_AT)
    return float(microseconds) / 1e6
