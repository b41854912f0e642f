"""``init_method="mdns://"`` and ``"grpc://HOST:PORT"`` for torch, without a launcher.

The other machines are found by multicast, or through a coordinator. Every process is a
node with one rank. Its agent is a separate process, started here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ringleader.errors import ConfigError
from ringleader.node.launch.agent_settings import agent_config
from ringleader.node.launch.job_fingerprint import job_fingerprint
from ringleader.node.launch.join import MAX_NODES, TIMEOUT_S, WAIT_S
from ringleader.node.launch.own_agent import join_round_here
from ringleader.node.protocol.local_requests import EnterJob

OPTIONS = {"nodes", "min_nodes", "job", "wait", "timeout", "peers", "rank0"}


def rendezvous(url: str, **_: Any) -> Iterator[tuple[object, int, int]]:  # noqa: ANN401
    """Yield (store, rank, world size) for a URL, as torch expects of a handler.

    Options are those of ``join``: ``mdns://?nodes=3&job=name&wait=10&timeout=300``.
    """
    parts = urlsplit(url)
    scheme, given = f"{parts.scheme}://", dict(parse_qsl(parts.query))
    unknown = given.keys() - OPTIONS - {"rank", "world_size"}
    if unknown:
        names = ", ".join(sorted(OPTIONS))
        text = f"{scheme}: no option {sorted(unknown)[0]!r}; there are {names}"
        raise ConfigError(text)
    if "rank" in given:
        raise ConfigError(f"{scheme}: ranks are assigned automatically; leave rank out")
    try:
        request = _request(given)
    except ValueError as exc:
        raise ConfigError(f"{scheme}: {exc}") from exc
    if parts.scheme == "grpc" and not parts.netloc:
        raise ConfigError("grpc://: write grpc://HOST:PORT?nodes=N")
    coordinator = parts.netloc if parts.scheme == "grpc" else ""
    config = agent_config(coordinator=coordinator, peers=given.get("peers", ""))
    found = join_round_here(request, config)
    yield found.store, found.entered.rank, found.entered.size
    raise ConfigError(f"{scheme}: form a new process group, not a new rendezvous")


def _request(given: dict[str, str]) -> EnterJob:
    exact = given.get("nodes") or given.get("world_size")
    need = int(exact or given.get("min_nodes") or 2)
    return EnterJob(
        job=given.get("job", "default"),
        min_nodes=need,
        max_nodes=need if exact else MAX_NODES,
        wait_s=float(given.get("wait", WAIT_S)),
        timeout_s=float(given.get("timeout", TIMEOUT_S)),
        fingerprint=job_fingerprint(None),
        rank0=given.get("rank0", ""),
    )
