"""Where ``ringleader.log`` of a worker writes, as its launcher sets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RINGLEADER_NUMBERS"
"""Folder of the numbers that the workers of one job log on one machine."""


def number_folder(env: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder; None outside of a job of ``ringleader run``."""
    env = os.environ if env is None else env
    text = env.get(VARIABLE, "")
    return Path(text) if text else None


def number_rank(env: Mapping[str, str] | None = None) -> int:
    """Return the rank of this worker; 0 if the launcher does not say it."""
    env = os.environ if env is None else env
    text = env.get("RANK", "0")
    return int(text) if text.isascii() and text.isdecimal() else 0
