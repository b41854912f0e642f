"""One listener for all groups of a process, so that each rank needs one port only.

Groups with the same ports and credentials share a listener. It is open while one of
them is. The channel in a rank's endpoint tells its groups apart.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass, field

from ringleader.transport.listener import Listener
from ringleader.transport.tls_credentials import TlsCredentials


@dataclass(slots=True, eq=False)
class _Shared:
    ports: range
    credentials: TlsCredentials | None
    listener: Listener
    num_leases: int = 0


class _Registry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.shared: list[_Shared] = []


_registry = _Registry()


@dataclass(slots=True, eq=False)
class ListenerLease:
    """A group's use of a shared listener, and the channel that is its own there."""

    listener: Listener
    _shared: _Shared
    channel: int = field(default_factory=lambda: 1 + secrets.randbelow(2**64 - 1))
    _is_closed: bool = False

    @classmethod
    def take(cls, ports: range, credentials: TlsCredentials | None) -> ListenerLease:
        """Listen on one of ``ports`` of every interface, or use what does already."""
        with _registry.lock:
            for each in _registry.shared:
                if each.ports == ports and each.credentials is credentials:
                    shared = each
                    break
            else:
                listener = Listener.open("", ports, credentials)
                shared = _Shared(ports, credentials, listener)
                _registry.shared.append(shared)
            shared.num_leases += 1
        return cls(shared.listener, shared)

    def close(self) -> None:
        """End this use; the last one closes the listener. Idempotent."""
        with _registry.lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._shared.num_leases -= 1
            if self._shared.num_leases or self._shared not in _registry.shared:
                return
            _registry.shared.remove(self._shared)
        self._shared.listener.close()


def _forget_listeners() -> None:
    """Leave the port to the parent in a forked child, which opens its own listener."""
    inherited, _registry.shared = _registry.shared, []
    _registry.lock = threading.Lock()
    for each in inherited:
        each.listener.hang_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_listeners)
