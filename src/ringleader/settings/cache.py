"""Where data of other machines is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ringleader.errors import ConfigError


def cache_folder(
    given: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Return ``given``, RINGLEADER_CACHE, or ``ringleader`` in the user's cache."""
    if given is not None:
        return Path(given).expanduser().absolute()
    env = os.environ if env is None else env
    text = env.get("RINGLEADER_CACHE", "")
    try:
        if text:
            path = Path(text).expanduser()
        else:
            users = env.get("XDG_CACHE_HOME", "")
            path = (Path(users) if users else Path.home() / ".cache") / "ringleader"
    except RuntimeError as exc:
        raise ConfigError("no home directory; set RINGLEADER_CACHE") from exc
    if not path.is_absolute():
        raise ConfigError(f"RINGLEADER_CACHE is {text!r}; use an absolute path")
    return path
