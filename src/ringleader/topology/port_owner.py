"""find_port_owner tells which program uses a port of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that has bound a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def find_port_owner(port: int, protocol: str) -> PortOwner | None:
    """Return the process listening on a ``tcp`` or ``udp`` port; None if not visible.

    Only the administrator sees processes of other users.
    """
    try:
        sockets = psutil.net_connections(kind=protocol)
    except (psutil.Error, OSError):
        return None
    for each in sockets:
        is_listening = protocol == "udp" or each.status == psutil.CONN_LISTEN
        if each.laddr and each.laddr.port == port and is_listening and each.pid:
            return PortOwner(each.pid, _process_name(each.pid))
    return None


def _process_name(pid: int) -> str:
    """Return the process name; for ``python -m module``, the module as well."""
    try:
        process = psutil.Process(pid)
        name = str(process.name())
        words = [str(word) for word in process.cmdline()]
    except (psutil.Error, OSError):
        return "a process"
    if name.startswith("python") and len(words) > 2 and words[1] == "-m":
        name = f"{name} -m {words[2]}"
    return "".join(c if c.isprintable() else "?" for c in name)[:64]
