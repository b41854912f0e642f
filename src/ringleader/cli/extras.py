"""``require_extra``: refuses a command whose optional packages are not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from ringleader.errors import ConfigError

_PACKAGES = {
    "bench": {"matplotlib": "matplotlib"},
    "coordinator": {
        "grpc": "grpcio",
        "grpc_health": "grpcio-health-checking",
        "grpc_reflection": "grpcio-reflection",
    },
    "internet": {
        "httpx2": "httpx2",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
        **({} if sys.version_info >= (3, 14) else {"backports.zstd": "backports.zstd"}),
    },
}
"""Extra -> the modules that its commands import -> the package of each."""


def require_extra(extra: str) -> None:
    """Raise ``ConfigError`` with the command that installs what is missing."""
    missing = [name for module, name in _PACKAGES[extra].items() if not _has(module)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        how = f"pip install 'ringleader[{extra}]'"
        raise ConfigError(f"{', '.join(missing)} {verb} not installed; run: {how}")


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains it is missing
        return False
