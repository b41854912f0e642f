"""Writes every frame of a network interface to a file, until it is killed.

Usage: python -m tests.kit.packet_capture INTERFACE FILE. Prints one line when it has
begun. Frames are written one after the other; ``\\n--\\n`` separates them.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

EVERY_PROTOCOL = 0x0003
BUFFER_BYTES = 64 << 20


def main() -> None:
    """Capture until the process ends."""
    device, path = sys.argv[1:]
    protocol = socket.htons(EVERY_PROTOCOL)
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, protocol) as raw,
        Path(path).open("wb", buffering=0) as file,
    ):
        force = getattr(socket, "SO_RCVBUFFORCE", 33)
        raw.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        raw.bind((device, 0))
        print("capturing", flush=True)  # noqa: T201
        while True:
            file.write(raw.recv(1 << 16) + b"\n--\n")


if __name__ == "__main__":
    main()
