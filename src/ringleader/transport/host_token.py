"""Which ranks share a host: the same boot of the same kernel, the same network."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import uuid
from functools import cache
from pathlib import Path


def new_incarnation() -> bytes:
    """Random bytes that tell one group's member in this process from all others."""
    return secrets.token_bytes(16)


@cache
def host_token() -> bytes:
    """16 bytes equal on ranks that may share memory.

    Boot id and network namespace: containers and test namespaces on one kernel count as
    separate hosts, as they would behave on a real network.
    """
    parts = [platform.node(), str(uuid.getnode())]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return hashlib.blake2b("|".join(parts).encode(), digest_size=16).digest()
