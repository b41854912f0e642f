"""The point at which a test lets a training process kill itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from ringleader.errors import ConfigError


class KillPoint(NamedTuple):
    """The process ends when it reaches ``name`` for the ``times``-th time."""

    name: str
    times: int


def kill_point(env: Mapping[str, str] | None = None) -> KillPoint | None:
    """Return RINGLEADER_KILL_AT, ``NAME@TIMES``, for tests; None if it is not set."""
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_KILL_AT", "")
    if not text:
        return None
    name, _, times = text.rpartition("@")
    if not name or not times.isdigit() or int(times) < 1:
        raise ConfigError(
            f"RINGLEADER_KILL_AT is {text!r}; write NAME@TIMES, as held@2"
        )
    return KillPoint(name, int(times))
