"""Limits of what callers may send, and the checks of single fields.

Everything that the coordinator keeps is bounded by these numbers. A message never comes
near gRPC's default limit of 4 MiB: requests have at most a few KiB, and a long list of
peers is sent in several messages.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from ringleader.errors import ConfigError

KEY_BYTES = 32
MAX_JOB = 64
MAX_ID = 128
MAX_ADDRESSES = 16
MAX_PATH_BYTES = 1024
MAX_STEP = 2**53
"""Largest step number: a float64, and so every JSON parser, holds it exactly."""

MAX_NAMESPACES = 256
MAX_WORKERS = 2048
"""Registered workers of one namespace."""
MAX_ALL_WORKERS = 8192
"""Registered workers of all namespaces."""
MAX_FORMER = 2048
"""Workers of one namespace that left and may return to their rank."""
MAX_CHECKPOINTS = 64
"""Checkpoints of one namespace; then the oldest is forgotten."""
MAX_LOG = 4096
"""Changes of one namespace kept for watchers. A watcher that is further behind gets
the whole list instead."""

MAX_REQUEST_BYTES = 64 << 10
"""Largest request: 16 addresses of 260 characters and some ids make 5 KiB."""
WORKERS_PER_MESSAGE = 256
"""Workers in one message to a watcher: at most 1.2 MiB."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_SCOPE = re.compile(r"[A-Za-z0-9._-]{0,16}")


def check_key(key: bytes) -> bytes:
    """Return the key of a namespace, or raise ConfigError."""
    if len(key) != KEY_BYTES:
        text = f"namespace.key has {len(key)} bytes, not {KEY_BYTES}"
        raise ConfigError(f"{text}; derive it from the cluster secret")
    return key


def check_job(job: str) -> str:
    """Return the name of a job, which may be empty, or raise ConfigError."""
    if not job:
        return job
    return _check_text("namespace.job", job, MAX_JOB)


def check_id(name: str, value: str) -> str:
    """Return a worker id or an incarnation, or raise ConfigError."""
    return _check_text(name, value, MAX_ID)


def _check_text(name: str, value: str, limit: int) -> str:
    if not value:
        raise ConfigError(f"{name} is missing")
    if len(value) > limit or not _ID.fullmatch(value):
        text = f"{name} is {value[:40]!r}; use 1 to {limit} letters, digits and ._:/@-"
        raise ConfigError(f"{text}, the first a letter or digit")
    return value


def check_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of a worker, each once, or raise ConfigError."""
    found = tuple(dict.fromkeys(addresses))
    if not found:
        raise ConfigError("addresses are missing; name where other workers reach this")
    if len(found) > MAX_ADDRESSES:
        text = f"{len(found)} addresses, the limit is {MAX_ADDRESSES}"
        raise ConfigError(f"{text}; send those that others reach")
    for each in found:
        if not is_address(each):
            raise ConfigError(f"address {each[:80]!r}: write host:port or [ipv6]:port")
    return found


def is_address(text: str) -> bool:
    """Return whether this is ``host:port`` or ``[ipv6]:port``, with a real port."""
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        return False
    if host.startswith("[") and host.endswith("]"):
        return _is_ipv6(host[1:-1])
    return _HOST.fullmatch(host) is not None


def _is_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return _SCOPE.fullmatch(address.scope_id or "") is not None


def check_step(step: int) -> int:
    """Return the step of a checkpoint, or raise ConfigError."""
    if not 0 <= step <= MAX_STEP:
        raise ConfigError(f"step is {step}; use 0 to 2**53")
    return step


def check_path(path: str) -> str:
    """Return the path of a checkpoint, or raise ConfigError."""
    if not path:
        raise ConfigError("path is missing; say where the checkpoint is written")
    if len(path.encode()) > MAX_PATH_BYTES or not path.isprintable():
        text = f"path is {path[:40]!r}; use at most {MAX_PATH_BYTES} bytes"
        raise ConfigError(f"{text} without control characters")
    return path
