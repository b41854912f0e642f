"""Entry points that torch loads: the backend and the init method ``mdns://``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from ringleader import settings
from ringleader.backend import register as backend

SCHEME = "mdns"


def autoload() -> None:
    """Register everything; never raises, which would break ``import torch``."""
    backend.autoload()
    for step, what in ((_register_scheme, "mdns://"), (_compress, "--compress")):
        try:
            step()
        except Exception:
            logging.getLogger(__name__).exception("%s is not available", what)


def register() -> None:
    """Register everything, for torch 2.14 and later, which loads a single backend."""
    backend.register()
    _register_scheme()
    _compress()


def _register_scheme() -> None:
    """Register the URL scheme once: torch refuses a scheme that it knows."""
    import torch.distributed as dist

    if dist.is_available():
        known = import_module("torch.distributed.rendezvous")
        if SCHEME not in known._rendezvous_handlers:
            known.register_rendezvous_handler(SCHEME, _rendezvous)


def _compress() -> None:
    """Compress the gradients of DistributedDataParallel if the environment says so."""
    if settings.compress():
        from ringleader.compression import env_hook

        env_hook.install()


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[object, int, int]]:  # noqa: ANN401
    from ringleader.node.launch.mdns_init_method import mdns_rendezvous

    return mdns_rendezvous(url, **options)
