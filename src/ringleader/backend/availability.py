"""Which backends of torch.distributed can run on this machine, and why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from ringleader.backend.link_availability import LinkInfo, links
from ringleader.backend.name import NAME
from ringleader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """The availability of one torch.distributed backend on this machine."""

    name: str
    available: bool
    reason: str
    """Why it is not available or, if it is, which tensors it handles."""
    links: tuple[LinkInfo, ...] = ()
    """The links between ranks that this backend can choose from; only ours has any."""

    def __str__(self) -> str:
        return f"{self.name}: {'yes' if self.available else 'no'} ({self.reason})"

    def __bool__(self) -> bool:
        return self.available


def backends() -> dict[str, BackendInfo]:
    """Return, for every backend, whether ``init_process_group(name)`` can work here.

    ``backends()["ringleader"].links`` says the same of the links between its ranks.
    """
    found = {name: _probe(name, probe) for name, probe in _PROBES.items()}
    if NAME in found:
        found[NAME] = replace(found[NAME], links=links())
    return found


def require_backend(name: str) -> str:
    """Return ``name`` if that backend can run here; else ConfigError says why not.

    For scripts whose users choose the backend:
    ``init_process_group(ringleader.require_backend(name))``.
    """
    if name not in _PROBES:
        raise ConfigError(
            f"unknown backend {name!r}; choose one of: {', '.join(_PROBES)}"
        )
    info = _probe(name, _PROBES[name])
    if not info:
        able = ", ".join(n for n, e in backends().items() if e)
        raise ConfigError(f"{name} cannot run here: {info.reason}; these can: {able}")
    return name


def _probe(name: str, probe: Callable[[], tuple[bool, str]]) -> BackendInfo:
    if not dist.is_available():
        return BackendInfo(
            name, False, "this torch was built without torch.distributed"
        )
    return BackendInfo(name, *probe())


def _ringleader() -> tuple[bool, str]:
    if NAME.upper() in dist.Backend._plugins:
        return True, "CPU tensors directly, CUDA and MPS through host memory"
    return False, "not registered with torch; import ringleader after torch"


def _gloo() -> tuple[bool, str]:
    if dist.is_gloo_available():
        return True, "CPU tensors, and CUDA through host memory"
    return False, "this torch was built without Gloo"


def nccl_status() -> tuple[bool, str]:
    """Return whether NCCL can run here, and on what it runs or why not."""
    if not dist.is_nccl_available():
        return False, "this torch was built without NCCL"
    if not torch.cuda.is_available():
        return False, "NCCL needs an NVIDIA GPU, and torch finds none here"
    return True, f"CUDA tensors, on {torch.cuda.device_count()} GPU(s)"


def _mpi() -> tuple[bool, str]:
    if not dist.is_mpi_available():
        text = "this torch was built without MPI; only builds from source have it"
        return False, text
    return True, "whatever the MPI library can do; start with mpirun"


def _ucc() -> tuple[bool, str]:
    if not dist.is_ucc_available():
        return False, "this torch was built without UCC"
    return True, "CPU and CUDA tensors"


_PROBES: dict[str, Callable[[], tuple[bool, str]]] = {
    NAME: _ringleader,
    "gloo": _gloo,
    "nccl": nccl_status,
    "mpi": _mpi,
    "ucc": _ucc,
}
