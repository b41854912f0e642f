"""How nodes find each other: the coordinator and multicast, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ringleader.settings import is_on


def coordinator(env: Mapping[str, str] | None = None) -> str:
    """Return host:port of the coordinator, RINGLEADER_COORDINATOR; empty: none."""
    env = os.environ if env is None else env
    return env.get("RINGLEADER_COORDINATOR", "")


def uses_mdns(env: Mapping[str, str] | None = None) -> bool | None:
    """Return whether to look for nodes by multicast, RINGLEADER_MDNS; None: not set."""
    env = os.environ if env is None else env
    return is_on(env, "RINGLEADER_MDNS") if env.get("RINGLEADER_MDNS") else None


def is_plaintext(env: Mapping[str, str] | None = None) -> bool:
    """Return whether the user goes without encryption: RINGLEADER_PLAINTEXT."""
    return is_on(os.environ if env is None else env, "RINGLEADER_PLAINTEXT")


def quiet_grpc() -> None:
    """Keep gRPC from writing to standard error: its errors reach us as exceptions."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
