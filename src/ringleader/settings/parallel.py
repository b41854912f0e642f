"""Settings of parallel training: memory that may be used, and plans only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from ringleader.errors import ConfigError
from ringleader.settings import is_on

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]i?b)?", re.IGNORECASE)
SHOWN = 60


def memory_limit(env: Mapping[str, str] | None = None) -> int | None:
    """Return the bytes a rank may use for a model, RINGLEADER_MEMORY; None: measure.

    >>> memory_limit({"RINGLEADER_MEMORY": "1.5GiB"})
    1610612736
    """
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_MEMORY", "").strip()
    if not text:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        text = f"RINGLEADER_MEMORY is {text[:SHOWN]!r}; write 8GiB or 500MB"
        raise ConfigError(text)
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def is_dry_run(env: Mapping[str, str] | None = None) -> bool:
    """Return whether parallelize prints its plan and ends: RINGLEADER_DRY_RUN."""
    return is_on(os.environ if env is None else env, "RINGLEADER_DRY_RUN")
