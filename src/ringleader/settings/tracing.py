"""Whether a worker is to be traced, as ``ringleader run --trace`` tells it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ringleader.errors import ConfigError
from ringleader.settings import launch

_PATH, _SINCE = "RINGLEADER_TRACE", "RINGLEADER_TRACE_SINCE"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where the trace of a run goes."""

    path: str
    since_s: float
    """Wall clock when the run began: a later file is a trace of its earlier workers."""


def trace_environment(path: str) -> dict[str, str]:
    """Return the variables for workers that start from now on.

    Raises ConfigError if no file can be written at ``path``.
    """
    return {_PATH: str(check_path(path)), _SINCE: repr(time.time())}


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path; ConfigError if no file can be written there."""
    file = Path(path).expanduser().absolute()
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"trace {file}: name a file in a folder that exists")
    return file


def wants_trace() -> bool:
    """Return whether this process is a worker and should be traced."""
    return bool(os.environ.get(_PATH)) and launch.has_rank()


def take_trace_settings() -> TraceSettings:
    """Return how to trace a worker, for which ``wants_trace``.

    The variables are removed: programs that the worker starts are not traced.
    """
    path, since = os.environ.pop(_PATH), os.environ.pop(_SINCE, "")
    try:
        return TraceSettings(path, float(since) if since else time.time())
    except ValueError as exc:
        raise ConfigError(f"{_SINCE} is {since!r}, not a number of seconds") from exc
