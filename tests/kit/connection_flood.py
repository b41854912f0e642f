"""Opens connections from many addresses as fast as it can, silent or nearly so."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import sys

HELD = 3000
"""Connections that stay open at a time; the oldest is reset for the next."""
LAG = 50
"""A connection speaks when so many more were made; then it is established."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def flood(port: int, num_addresses: int, least: int, said: bytes) -> int:
    """Connect to ``port`` of this machine from 127.1.0.0/16 until standard input ends,
    at least ``least`` times; return how often."""
    held: collections.deque[socket.socket] = collections.deque()
    count = 0
    while count < least or not select.select([sys.stdin], [], [], 0)[0]:
        number = count % num_addresses
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        with contextlib.suppress(BlockingIOError):
            sock.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
            sock.connect(("127.0.0.1", port))
        held.append(sock)
        if said and len(held) > LAG:
            with contextlib.suppress(OSError):
                held[-LAG].send(said)
        if len(held) > HELD:
            held.popleft().close()
        count += 1
    for sock in held:
        sock.close()
    return count


if __name__ == "__main__":
    sys.stdout.write("started\n")
    sys.stdout.flush()
    made = flood(
        int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
    )
    sys.stdout.write(f"{made}\n")
