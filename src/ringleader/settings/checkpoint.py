"""Where a run keeps its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping


def checkpoint_folder(env: Mapping[str, str] | None = None) -> str:
    """Return where the run keeps checkpoints, RINGLEADER_CHECKPOINT; empty: nowhere."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_CHECKPOINT", "")
