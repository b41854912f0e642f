"""``AgentIdentity``: key, cluster and credentials of an agent, and their files."""

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
from ringleader.node.protocol.agent_config import RUN_DIRECTORY


@dataclass(slots=True)
class AgentIdentity:
    """Holds a node key for the life of an agent; no other agent may use it."""

    claimed: ClaimedKey
    credentials: Credentials
    cluster: cluster_secret.ClusterSecret
    directory: Path

    @classmethod
    def claim(cls, home_path: str) -> Self:
        """Claim a node key of this user and write credentials for the workers.

        Raises ``ConfigError`` if this user is in no cluster.
        """
        home = Home(Path(home_path))
        cluster = cluster_secret.load(home)
        if cluster is None:
            raise ConfigError(
                "this machine is in no cluster yet; run 'ringleader init' here to make "
                "one, or 'ringleader join' with the phrase of an existing one"
            )
        claimed = claim(home)
        try:
            credentials = Credentials.issue(cluster, claimed.key)
            directory = home.path / RUN_DIRECTORY
            directory.mkdir(mode=0o700, exist_ok=True)
            _remove_files_of_dead_agents(directory)
            identity = cls(claimed, credentials, cluster, directory)
            credentials.to_file(identity.credentials_file)
        except BaseException:
            claimed.close()
            raise
        return identity

    @property
    def node(self) -> NodeId:
        """Id of this node."""
        return self.claimed.key.node_id

    @property
    def status_socket(self) -> Path:
        """Path of the Unix socket for other commands of this user."""
        return self.directory / f"{os.getpid()}.sock"

    @property
    def credentials_file(self) -> Path:
        """Path of the file with which workers of this node authenticate."""
        return self.directory / f"{os.getpid()}.credentials"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.credentials_file.unlink()
        self.claimed.close()


def _remove_files_of_dead_agents(directory: Path) -> None:
    """Remove what killed agents left behind; their credentials must not remain."""
    for path in directory.iterdir():
        if path.stem.isdecimal() and not _is_alive(int(path.stem)):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it exists and belongs to another user
    return True
