"""The cluster of this user: storing it after joining, and forgetting it."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret, jobs_permission, known_nodes
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.known_nodes import KnownNode
from ringleader.identity.node_key import key_files
from ringleader.identity.storage.home import Home, HomeWriter


def check_not_joined(home: Home) -> None:
    """Raise ConfigError if this user is in a cluster already."""
    existing = cluster_secret.load(home)
    if existing is not None:
        raise ConfigError(_already_joined(existing))


def store_cluster(
    home: Home,
    cluster: ClusterSecret,
    *,
    met: KnownNode | None = None,
    replace: bool = False,
) -> bool:
    """Store a cluster and the node that let us in; return False if it was stored
    before.

    Being in another cluster is a ConfigError, unless ``replace``; so is a damaged file,
    which it replaces. Node keys stay.
    """
    with home.writing() as change:
        existing = None
        try:
            existing = cluster_secret.load(home)
        except ConfigError:
            if not replace:
                raise
            change.remove(known_nodes.FILE)
        is_same = existing is not None and existing.root == cluster.root
        if existing is not None and not is_same:
            if not replace:
                raise ConfigError(_already_joined(existing))
            change.remove(known_nodes.FILE)
        if existing is None or not is_same or cluster.name:
            cluster_secret.store(change, cluster)
        if met is not None:
            known_nodes.remember(home, change, met)
    return not is_same


def forget_cluster(home: Home) -> ClusterSecret | None:
    """Delete secret, keys and known nodes; return the cluster we were in, or None.

    Raises ConfigError while a node of this user runs: it would continue to use what is
    deleted.
    """
    with home.writing() as change, ExitStack() as stack:
        left = None
        with suppress(ConfigError):  # damaged: leaving is the way to repair it
            left = cluster_secret.load(home)
        for name in key_files(home):
            held = home.try_lock(name)
            if held is None:
                text = f"{home.path / name} is in use: a node runs on this machine"
                more = "or on one that shares this directory; stop it first"
                more += " (ringleader down)"
                raise ConfigError(f"{text} {more}")
            stack.callback(held.close)
        answers = [known_nodes.FILE, jobs_permission.FILE]
        _remove_all(change, [cluster_secret.FILE, *answers, *key_files(home)])
    return left


def _remove_all(change: HomeWriter, names: list[str]) -> None:
    for name in names:
        change.remove(name)


def _already_joined(existing: ClusterSecret) -> str:
    return (
        f"this machine is in cluster {existing.title} already; "
        "run 'ringleader leave' first, or pass --force to replace it"
    )
