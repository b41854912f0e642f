"""Which program holds a port of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class PortOwner:
    """A process that has a port."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def find_port_owner(port: int, protocol: str) -> PortOwner | None:
    """Who listens at a port, ``tcp`` or ``udp``; None where we may not know.

    Other users' processes are visible to the administrator only.
    """
    try:
        sockets = psutil.net_connections(kind=protocol)
    except (psutil.Error, OSError):
        return None
    for each in sockets:
        is_listening = protocol == "udp" or each.status == psutil.CONN_LISTEN
        if each.laddr and each.laddr.port == port and is_listening and each.pid:
            return PortOwner(each.pid, _name_of(each.pid))
    return None


def _name_of(pid: int) -> str:
    """What the process is called; its program where that is only an interpreter."""
    try:
        process = psutil.Process(pid)
        name = str(process.name())
        words = [str(word) for word in process.cmdline()]
    except (psutil.Error, OSError):
        return "a process"
    if name.startswith("python") and len(words) > 2 and words[1] == "-m":
        name = f"{name} -m {words[2]}"
    return "".join(c if c.isprintable() else "?" for c in name)[:64]
