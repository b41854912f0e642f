"""How much the folders of ended jobs may take on this machine's disk."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringleader.errors import ConfigError
from ringleader.settings.numbers import number

VARIABLE = "RINGLEADER_JOBS_MB"
DEFAULT_MB = 20_000


def jobs_limit_bytes(env: Mapping[str, str] | None = None) -> int | None:
    """Return the bytes of RINGLEADER_JOBS_MB; None if the user has set none."""
    env = os.environ if env is None else env
    if VARIABLE not in env:
        return None
    limit_mb = number(env, VARIABLE)
    if not 1 <= limit_mb <= 1_000_000_000:
        raise ConfigError(f"{VARIABLE} is {limit_mb}; use 1 to 1000000000")
    return limit_mb * 1_000_000
