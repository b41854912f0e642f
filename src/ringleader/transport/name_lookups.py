"""``no_name_lookups``: keeps torch from asking name servers.

torch's TCPStore looks up the name of the address that it connects to, and its elastic
agent the full name of this host, both only for messages. Where no name server answers,
each takes ten seconds.
"""

from __future__ import annotations

import ctypes
import ipaddress
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SWITCH = Path("/etc/nsswitch.conf")
_DEFAULT = "files dns"


@contextmanager
def no_name_lookups(host: str) -> Iterator[None]:
    """Let this process, with all threads, find names in /etc/hosts only.

    ``host`` is the address to be used meanwhile; if it is a name, which must be looked
    up, this does nothing. Nor does it where the C library is not glibc.
    """
    configure = _configure_lookup() if _is_numeric(host) else None
    if configure is None:
        yield
        return
    _change(configure, +1)
    try:
        yield
    finally:
        _change(configure, -1)


_Configure = Callable[[bytes, bytes], int]
_lock = threading.Lock()
_users = 0


def _change(configure: _Configure, users: int) -> None:
    """Count the users: the first one and the last one reconfigure the process."""
    global _users
    with _lock:
        if _users == 0:
            configure(b"hosts", b"files")
        _users += users
        if _users == 0:
            configure(b"hosts", _sources().encode())


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a numeric address of this host itself."""
    return _is_numeric(host) and ipaddress.ip_address(host).is_loopback


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _configure_lookup() -> _Configure | None:
    """Return glibc's function that replaces a line of nsswitch.conf in this process."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "__nss_configure_lookup", None)


def _sources() -> str:
    """Return where this system looks up hosts, as its nsswitch.conf says."""
    try:
        lines = _SWITCH.read_text().splitlines()
    except OSError:
        return _DEFAULT
    found = [line.partition("#")[0].partition(":") for line in lines]
    return next(
        (value.strip() for name, _, value in found if name == "hosts"), _DEFAULT
    )
