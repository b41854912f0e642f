"""``AgentIdentity``: key, cluster and credentials of an agent, and their files."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ringleader.errors import ConfigError
from ringleader.identity import cluster_secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import ClaimedKey, claim
from ringleader.identity.storage.home import FileLock, Home, HomeWriter
from ringleader.ids import NodeId
from ringleader.node.protocol.agent_config import run_directory

_CREDENTIALS = ".credentials"
_SOCKET = ".sock"


@dataclass(slots=True)
class AgentIdentity:
    """Holds a node key for the life of an agent; no other agent may use it."""

    claimed: ClaimedKey
    credentials: Credentials
    cluster: cluster_secret.ClusterSecret
    status_socket: Path
    """Path of the Unix socket for other commands of this user."""
    credentials_file: Path
    """Path of the file with which workers of this node authenticate."""
    _held: FileLock
    """On the credentials file: other agents see that this one is alive."""

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
            directory = run_directory(home.path)
            # The process id is for people; it may occur twice, in two containers.
            name = f"{os.getpid()}-{secrets.token_hex(4)}"
            file = directory / f"{name}{_CREDENTIALS}"
            with home.writing():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _remove_files_of_dead_agents(directory)
                credentials.to_file(file)
                held = Home(directory).try_lock(file.name)
            assert held is not None, "no other process knows the name of the file"
        except BaseException:
            claimed.close()
            raise
        socket = directory / f"{name}{_SOCKET}"
        return cls(claimed, credentials, cluster, socket, file, held)

    @property
    def node(self) -> NodeId:
        """Id of this node."""
        return self.claimed.key.node_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        with contextlib.suppress(OSError):
            self.credentials_file.unlink()
        self.claimed.close()


def _remove_files_of_dead_agents(directory: Path) -> None:
    """Remove what killed agents left behind; their credentials must not remain.

    An agent is alive while it holds the lock of its credentials. Its process id would
    not tell: containers with one host name may count processes separately.
    """
    HomeWriter(directory).sweep()
    for name in {path.stem for path in directory.iterdir()}:
        file = directory / f"{name}{_CREDENTIALS}"
        if file.exists():
            held = Home(directory).try_lock(file.name)
            if held is None:
                continue
            held.close()
        for path in (file, directory / f"{name}{_SOCKET}"):
            with contextlib.suppress(OSError):
                path.unlink()
