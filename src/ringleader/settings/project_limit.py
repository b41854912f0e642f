"""How large a project may be that travels to other machines."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringleader.errors import ConfigError
from ringleader.settings.numbers import number

VARIABLE = "RINGLEADER_PROJECT_MB"
DEFAULT_MB = 512


def project_limit_bytes(env: Mapping[str, str] | None = None) -> int:
    """Return the bytes that all files of a project may have: RINGLEADER_PROJECT_MB."""
    env = os.environ if env is None else env
    limit_mb = number(env, VARIABLE) if VARIABLE in env else DEFAULT_MB
    if not 1 <= limit_mb <= 1_000_000:
        raise ConfigError(f"{VARIABLE} is {limit_mb}; use 1 to 1000000")
    return limit_mb * 1_000_000
