"""Facts about this machine itself: file descriptors, shared memory, ports."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ringleader.discovery.multicast import PORT, UnavailableReason, port_trouble
from ringleader.doctor.facts import Descriptors, SharedMemory, TakenPort
from ringleader.errors import ConfigError
from ringleader.topology.port_owner import find_port_owner
from ringleader.transport.listening_socket import listen

if sys.platform != "win32":
    import resource

SHM = Path("/dev/shm")
OWN_DESCRIPTORS = 512
"""File descriptors that the doctor itself may need."""


def descriptors(agents: Sequence[int]) -> list[Descriptors]:
    """Count those of this process, of the agents with these pids, of the machine."""
    found = []
    if sys.platform != "win32":
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(os.listdir("/dev/fd"))
        found.append(Descriptors("a process started here", used, limit))
    for pid in agents:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            used = len(os.listdir(f"/proc/{pid}/fd"))
            whose = f"the agent, process {pid}"
            found.append(Descriptors(whose, used, _limit_of(pid)))
    with contextlib.suppress(OSError, ValueError):
        used_text, _, most = Path("/proc/sys/fs/file-nr").read_text().split()
        found.append(Descriptors("the whole machine", int(used_text), int(most)))
    return found


def _limit_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    words = next(line for line in lines if line.startswith("Max open files")).split()
    return int(words[3])


def raise_descriptor_limit() -> None:
    """Raise the limit of this process, so that a low one does not stop the doctor."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_bounded = hard != resource.RLIM_INFINITY
        wanted = max(
            soft, min(OWN_DESCRIPTORS, hard) if is_bounded else OWN_DESCRIPTORS
        )
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shared_memory() -> SharedMemory | None:
    """Return the free space and whether a segment can be made; None on Windows."""
    if sys.platform == "win32":
        return None
    trouble = _segment_trouble()
    if not SHM.is_dir():
        return SharedMemory("", 0, 0, trouble)
    stat = os.statvfs(SHM)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    return SharedMemory(str(SHM), free, total, trouble)


def _segment_trouble() -> str:
    """Return why a segment like those of ``transport/shm_segment.py`` fails."""
    if sys.platform != "linux":
        return ""
    try:
        descriptor = os.memfd_create("ringleader", os.MFD_CLOEXEC)
    except OSError as exc:
        return f"processes cannot share memory ({exc.strerror})"
    try:
        os.write(descriptor, bytes(1))
    except OSError as exc:
        return f"shared memory cannot be written ({exc.strerror})"
    finally:
        os.close(descriptor)
    return ""


def taken_ports(wanted: int, agents: Sequence[int]) -> list[TakenPort]:
    """Return which of our ports, mDNS and ``wanted``, another program has."""
    found = []
    trouble = port_trouble()
    if trouble is not None and trouble.why is UnavailableReason.PORT_TAKEN:
        holder = find_port_owner(PORT, "udp")
        found.append(TakenPort(PORT, "udp", holder, trouble.text))
    if wanted:
        try:
            listen("", wanted).close()
        except ConfigError as exc:
            holder = find_port_owner(wanted, "tcp")
            if holder is None or holder.pid not in agents:
                found.append(TakenPort(wanted, "tcp", holder, exc.text))
    return found
