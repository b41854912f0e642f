"""Entry points that torch loads: the backend, ``mdns://``, ``grpc://``, torchrun's."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import TracebackType
from typing import Any

from ringleader import settings
from ringleader.backend import register as backend
from ringleader.backend import run_join
from ringleader.errors import ConfigError
from ringleader.node.launch import worker_main
from ringleader.settings import launch
from ringleader.settings.run import run_settings
from ringleader.settings.tracing import wants_trace
from ringleader.transport.name_lookups import is_loopback, no_name_lookups

SCHEMES = ("mdns", "grpc")


def autoload() -> None:
    """Register everything; never raises, which would break ``import torch``."""
    backend.autoload()
    for step, what in (
        (_register_schemes, "mdns:// and grpc://"),
        (_wrap_env, "env:// without name look-ups"),
        (_compress, "--compress"),
        (_survive, "--survive"),
        (_record_failures, "the record of failures"),
        (_trace, "--trace"),
    ):
        try:
            step()
        except Exception:
            logging.getLogger(__name__).exception("%s is not available", what)


def register() -> None:
    """Register everything, for torch 2.14 and later, which loads a single backend."""
    backend.register()
    _register_schemes()
    _wrap_env()
    _compress()
    _survive()
    _record_failures()
    _trace()


def torchrun_handler() -> Callable[[Any], Any]:
    """Return what makes the handler of ``torchrun --rdzv-backend=mdns`` or ``grpc``.

    torch calls this while its package of rendezvous handlers is being imported. Our
    handler's module imports that package, so it is imported only when it is used.
    """
    return _create_handler


def _create_handler(parameters: Any) -> Any:  # noqa: ANN401 - torch's types
    from ringleader.node.launch.elastic_rendezvous import create_handler

    return create_handler(parameters)


def _register_schemes() -> None:
    """Register the URL schemes once: torch refuses a scheme that it knows."""
    import torch.distributed as dist

    if dist.is_available():
        known = import_module("torch.distributed.rendezvous")
        for scheme in SCHEMES:
            if scheme not in known._rendezvous_handlers:
                known.register_rendezvous_handler(scheme, _rendezvous)


def _wrap_env() -> None:
    """Open the store of ``env://`` under mpirun and srun, too, which set no variables
    of torch, and without name look-ups, where that harms nobody.

    They are off for all threads. So only if the store is on this host, or if our
    launcher started this worker and hence gave it an address.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    if handlers["env"].__module__ == __name__:
        return
    torch_handler = handlers["env"]

    def handler(url: str, *args: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        if url == "env://" and launch.lacks_torch_variables():
            # Imported here: programs of torchrun do not need it.
            from ringleader.node.launch.launcher_init_method import launcher_rendezvous

            yield from launcher_rendezvous(*args, **options)
            return
        _refuse_newcomer()
        rounds = torch_handler(url, *args, **options)
        with no_name_lookups(_address_without_names()):
            first = next(rounds)
        launch.note_group()
        yield first
        yield from rounds

    handlers["env"] = handler


def _refuse_newcomer() -> None:
    """Raise ``ConfigError`` in a worker that joined a run: it would train alone."""
    run = run_settings()
    if run is not None and run.is_joiner:
        text = (
            f"job {run.job} has begun without this worker, and init_process_group "
            "cannot join a group that trains; the others go on. Use ringleader.elastic "
            "in the script to let machines join a run"
        )
        raise ConfigError(text)


def _address_without_names() -> str:
    """Return the address of the store if name look-ups may be off, else nothing."""
    address = settings.master_address()
    return address if settings.round_id() or is_loopback(address) else ""


def _compress() -> None:
    """Compress the gradients of DistributedDataParallel if the environment says so."""
    if settings.compress():
        from ringleader.compression import env_hook

        env_hook.install()


def _survive() -> None:
    """Let the default group of ``ringleader run --survive`` find its run.

    Whether there is one is decided later: a forked worker inherits this.
    """
    run_join.set_join(_join_run)


def _join_run(group: Any) -> Any:  # noqa: ANN401 - types of the packages above
    """Become a member of the run; by name, as it belongs to a package above this."""
    return import_module("ringleader.training.script_run").join_run(group)


def _trace() -> None:
    """Trace this worker if the environment says so; imported only then."""
    if wants_trace():
        from ringleader.tracing.run_trace import trace_run

        trace_run()


def _record_failures() -> None:
    """Record the exception that ends a worker of torchrun, for the other machines.

    ``ringleader run`` starts workers through ``worker_main``, which does it itself.
    """
    if settings.round_id() and settings.error_file():
        previous = sys.excepthook

        def record_first(
            kind: type[BaseException],
            error: BaseException,
            traceback: TracebackType | None,
        ) -> None:
            worker_main.record(error, traceback)
            previous(kind, error, traceback)

        sys.excepthook = record_first


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[object, int, int]]:  # noqa: ANN401
    from ringleader.node.launch.init_method import rendezvous

    return rendezvous(url, **options)
