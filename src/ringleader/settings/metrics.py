"""``MetricsSettings``: whether this process measures, and where it publishes that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ringleader.settings import is_on

FOLDER = "RINGLEADER_METRICS_FOLDER"
SWITCH = "RINGLEADER_METRICS"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """What the environment says about metrics."""

    is_on: bool
    folder: Path | None
    """Where a worker publishes its values for the agent of its machine."""


def metrics_settings(env: Mapping[str, str] | None = None) -> MetricsSettings:
    """Read RINGLEADER_METRICS (1 or 0) and RINGLEADER_METRICS_FOLDER.

    A folder, which ``ringleader run`` gives to its workers, turns metrics on, unless
    they are turned off by name.
    """
    env = os.environ if env is None else env
    folder = env.get(FOLDER, "")
    is_wanted = is_on(env, SWITCH) or bool(folder and not env.get(SWITCH))
    return MetricsSettings(is_wanted, Path(folder) if is_wanted and folder else None)
