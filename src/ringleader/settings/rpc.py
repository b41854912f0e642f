"""The limit on messages between RPC endpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringleader.errors import ConfigError
from ringleader.settings.numbers import number

_MAX_BYTES = 1 << 30


def rpc_max_bytes(env: Mapping[str, str] | None = None) -> int:
    """Return the longest message that is accepted, RINGLEADER_RPC_MAX_BYTES; 1 GiB."""
    env = os.environ if env is None else env
    name = "RINGLEADER_RPC_MAX_BYTES"
    if name not in env:
        return _MAX_BYTES
    value = number(env, name)
    if value < 1 << 16:
        raise ConfigError(f"{name} is {value}; use at least 65536 bytes")
    return value
