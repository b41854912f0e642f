"""host_token identifies the host, so that ranks know with whom they can share
memory.
"""

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
    """Return random bytes that identify this process's membership of one group."""
    return secrets.token_bytes(16)


@cache
def host_token() -> bytes:
    """Return 16 bytes that are equal on ranks that may share memory.

    They are derived from the boot id and the network namespace: containers and test
    namespaces on one kernel count as separate hosts, as they would behave on a real
    network.
    """
    try:
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    except OSError:  # not Linux
        parts = [platform.node(), str(uuid.getnode())]
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return hashlib.blake2b("|".join(parts).encode(), digest_size=16).digest()
