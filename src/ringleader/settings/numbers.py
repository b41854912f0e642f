"""``number``: a whole number in an environment variable."""

from __future__ import annotations

from collections.abc import Mapping

from ringleader.errors import ConfigError

SHOWN = 60
"""Characters of a wrong value that an error repeats."""


def number(env: Mapping[str, str], name: str) -> int:
    """Return the value of a variable that is set; ConfigError repeats a wrong one."""
    try:
        return int(env[name])
    except ValueError as exc:
        raise ConfigError(f"{name} is {env[name][:SHOWN]!r}, not a number") from exc
