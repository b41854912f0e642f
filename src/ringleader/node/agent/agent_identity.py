"""Who an agent is: its key, its cluster, its credentials, and where they lie."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import ClaimedKey, claim
from ringleader.identity.storage.home import Home
from ringleader.ids import NodeId
from ringleader.node.protocol.agent_client import RUN


@dataclass(slots=True)
class Keeper:
    """Held by an agent for its whole life; the key is nobody else's meanwhile."""

    claimed: ClaimedKey
    credentials: Credentials
    cluster: cluster_secret.ClusterSecret
    folder: Path

    @classmethod
    def enter(cls, home_path: str) -> Self:
        """Take a key of this user and speak for it in this user's cluster."""
        home = Home(Path(home_path))
        cluster = cluster_secret.load(home)
        if cluster is None:
            text = "this machine is in no cluster yet; run 'ringleader init' here, or"
            raise ConfigError(f"{text} 'ringleader join' with the phrase of yours")
        claimed = claim(home)
        try:
            credentials = Credentials.issue(cluster, claimed.key)
            folder = home.path / RUN
            folder.mkdir(mode=0o700, exist_ok=True)
            _sweep(folder)
            keeper = cls(claimed, credentials, cluster, folder)
            credentials.to_file(keeper.credentials_file)
        except BaseException:
            claimed.close()
            raise
        return keeper

    @property
    def node(self) -> NodeId:
        """Who we are."""
        return self.claimed.key.node_id

    @property
    def window(self) -> Path:
        """The Unix socket through which other commands look at us."""
        return self.folder / f"{os.getpid()}.sock"

    @property
    def credentials_file(self) -> Path:
        """With this the workers of this node prove who they are."""
        return self.folder / f"{os.getpid()}.credentials"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.credentials_file.unlink()
        self.claimed.close()


def _sweep(folder: Path) -> None:
    """Remove what agents that were killed have left: their keys must not lie about."""
    for path in folder.iterdir():
        if path.stem.isdecimal() and not _is_alive(int(path.stem)):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # there, and not ours
    return True
