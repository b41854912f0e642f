"""``no_name_lookups``: keeps torch from asking name servers about loopback addresses.

torch's TCPStore looks up the name of ``::ffff:127.0.0.1``, and its elastic agent the
full name of this host, both only for messages. Where no name server answers, each takes
ten seconds.
"""

from __future__ import annotations

import ctypes
import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_IS_READY = 1
"""RES_INIT of glibc's resolv.h: the state has been filled from resolv.conf."""


class _ResolverState(ctypes.Structure):
    """First fields of glibc's ``struct __res_state``, of which a thread has one."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )


@contextmanager
def no_name_lookups(host: str) -> Iterator[None]:
    """Let this thread know no name server: look-ups beyond /etc/hosts fail at once.

    ``host`` is the address to be used meanwhile; if it is a name, which must be looked
    up, this does nothing. Nor does it where the C library is not glibc.
    """
    state = _resolver_state() if _is_numeric(host) else None
    if state is None:
        yield
        return
    count, state.nscount = state.nscount, 0
    try:
        yield
    finally:
        state.nscount = count


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _resolver_state() -> _ResolverState | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    find, fill = getattr(libc, "__res_state", None), getattr(libc, "__res_init", None)
    if find is None or fill is None:
        return None
    find.restype = ctypes.POINTER(_ResolverState)
    state: _ResolverState = find().contents
    if not state.options & _IS_READY:
        fill()
    return state
