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
from ringleader.identity.cluster_secret import ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_credentials import NodeCredentials
from ringleader.identity.node_key import ClaimedKey, claim
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import FileLock, Home, HomeWriter
from ringleader.identity.user_credentials import UserCredentials
from ringleader.ids import NodeId
from ringleader.node.protocol.agent_config import run_directory
from ringleader.settings.tls_files import TlsFiles

_CREDENTIALS = ".credentials"
_SOCKET = ".sock"
_NODE = ".node"


@dataclass(slots=True)
class AgentIdentity:
    """Holds a node key for the life of an agent; no other agent may use it."""

    credentials: NodeCredentials
    cluster: ClusterSecret | UserCredentials
    """What the members have in common: its title, and its keys for finding others."""
    status_socket: Path
    """Path of the Unix socket for other commands of this user."""
    credentials_file: Path
    """Path of the file with which workers of this node authenticate; with the user's
    certificates it is empty."""
    _held: FileLock
    """On the credentials file: other agents see that this one is alive."""
    _claimed: ClaimedKey | FileLock

    @classmethod
    def claim(cls, home_path: str, files: TlsFiles | None = None) -> Self:
        """Claim a node key of this user and write credentials for the workers.

        With ``files`` the user's certificate is the identity of the node, and no
        cluster is needed. Raises ``ConfigError`` if this user is in no cluster, or if
        another agent has the same certificate.
        """
        home = Home(Path(home_path))
        directory = run_directory(home.path)
        if files is not None:
            own = UserCredentials.load(files)
            held = _claim_certificate(home, directory, own, files)
            return cls._open(home, directory, own, own, held)
        cluster = cluster_secret.load(home)
        if cluster is None:
            raise ConfigError(
                "this machine is in no cluster yet; run 'ringleader init' here to make "
                "one, or 'ringleader join' with the phrase of an existing one"
            )
        claimed = claim(home)
        try:
            issued = Credentials.issue(cluster, claimed.key)
        except BaseException:
            claimed.close()
            raise
        return cls._open(home, directory, issued, cluster, claimed)

    @classmethod
    def _open(
        cls,
        home: Home,
        directory: Path,
        credentials: NodeCredentials,
        cluster: ClusterSecret | UserCredentials,
        claimed: ClaimedKey | FileLock,
    ) -> Self:
        # The process id is for people; it may occur twice, in two containers.
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        file = directory / f"{name}{_CREDENTIALS}"
        try:
            with home.writing():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _remove_files_of_dead_agents(directory)
                if isinstance(credentials, Credentials):
                    credentials.to_file(file)
                else:
                    HomeWriter(directory).write(file.name, Secret(b""))
                held = Home(directory).try_lock(file.name)
            assert held is not None, "no other process knows the name of the file"
        except BaseException:
            claimed.close()
            raise
        socket = directory / f"{name}{_SOCKET}"
        return cls(credentials, cluster, socket, file, held, claimed)

    @property
    def node(self) -> NodeId:
        """Id of this node."""
        return self.credentials.node

    @property
    def worker_credentials(self) -> str:
        """Path of the workers' credentials; empty if they have the user's files."""
        is_ours = isinstance(self.credentials, Credentials)
        return str(self.credentials_file) if is_ours else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        with contextlib.suppress(OSError):
            self.credentials_file.unlink()
        self._claimed.close()


def _claim_certificate(
    home: Home, directory: Path, own: UserCredentials, files: TlsFiles
) -> FileLock:
    """Lock the user's certificate: two nodes of one id would be taken for clones."""
    name = f"{own.node}{_NODE}"
    with home.writing():
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (directory / name).exists():
            HomeWriter(directory).write(name, Secret(b""))
        held = Home(directory).try_lock(name)
    if held is None:
        text = f"{files.cert}: another agent of this machine uses this certificate"
        raise ConfigError(f"{text}, and each needs its own key; stop that one first")
    return held


def _remove_files_of_dead_agents(directory: Path) -> None:
    """Remove what killed agents left behind; their credentials must not remain.

    An agent is alive while it holds the lock of its credentials. Its process id would
    not tell: containers with one host name may count processes separately.
    """
    HomeWriter(directory).sweep()
    found = [path for path in directory.iterdir() if path.suffix != _NODE]
    for name in {path.stem for path in found}:
        file = directory / f"{name}{_CREDENTIALS}"
        if file.exists():
            held = Home(directory).try_lock(file.name)
            if held is None:
                continue
            held.close()
        for path in (file, directory / f"{name}{_SOCKET}"):
            with contextlib.suppress(OSError):
                path.unlink()
