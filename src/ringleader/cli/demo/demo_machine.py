"""DemoMachine: a private Ringleader home on this machine, paired by a phrase."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ringleader.identity import cluster_store, join_phrase
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import Home

_NAMES = ("desk", "laptop", "studio")
_LOOPBACK = {"darwin": "lo0", "win32": "Loopback Pseudo-Interface 1"}


@dataclass(frozen=True, slots=True)
class DemoMachine:
    """One simulated machine: a name and a Ringleader home."""

    name: str
    home: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes; their network is the loopback."""
        return {
            **os.environ,
            "RINGLEADER_HOME": str(self.home),
            "RINGLEADER_NAME": self.name,
            "RINGLEADER_CHECKPOINT": str(self.home / "checkpoints"),
            "RINGLEADER_INTERFACES": _LOOPBACK.get(sys.platform, "lo"),
            "RINGLEADER_PEERS": "",
        }


def pair(count: int, folder: Path) -> tuple[list[DemoMachine], str]:
    """Create a cluster and let all machines join; return them and its tag."""
    names = [*_NAMES, *(f"machine-{n + 1}" for n in range(len(_NAMES), count))]
    machines = [DemoMachine(name, folder / name) for name in names[:count]]
    words = join_phrase.new()
    tag = ""
    for machine in machines:
        # Each derives the secret from the phrase, as on separate machines.
        typed = join_phrase.parse(Secret(words.show()))
        cluster = ClusterSecret.from_phrase(typed, name="demo")
        cluster_store.store_cluster(Home(machine.home), cluster)
        tag = cluster.tag
    return machines, tag
