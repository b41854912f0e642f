"""NodeKey is the Ed25519 key that identifies a node; claim chooses its key file.

Several nodes of one user can run on one host: the first takes ``node_key`` and holds
its lock while it lives, the next takes ``node_key-2``. A restarted node gets its old
key back, so the others recognise it.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ringleader.errors import ConfigError, InternalError
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.home import FileLock, Home
from ringleader.ids import NodeId, short

MAX_NODES = 64
"""Nodes of one user on one host; more would be a loop that starts nodes."""

PUBLIC_BYTES = 32
_ID_CHARACTERS = 52
_FIRST = "node_key"
_NAME = re.compile(rf"{_FIRST}(-\d+)?")
_FILE_BYTES = 256
_TITLE = "ringleader node key 1"


_PRIME = 2**255 - 19
_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL = {0, 1, _PRIME - 1, _Y8, _PRIME - _Y8}
"""The y coordinates of all points of order 1, 2, 4 and 8."""


def is_weak(public: bytes) -> bool:
    """Return whether a signature by this key proves nothing.

    For eight points of the curve anybody can make signatures, and OpenSSL accepts them;
    a y beyond the prime is a second name of another point.
    """
    y = int.from_bytes(public, "little") & ((1 << 255) - 1)
    return y >= _PRIME or y in _SMALL


def node_id(public: bytes) -> NodeId:
    """Return the id of the node with this public key."""
    return NodeId(_base32(public))


def public_key(node: str) -> bytes | None:
    """Return the public key of a node id; None if the text is not an id."""
    raw = _from_base32(node, PUBLIC_BYTES)
    if raw is None or _base32(raw) != node or is_weak(raw):
        return None
    return raw


class NodeKey:
    """A private key that signs. Nothing prints the key itself."""

    __slots__ = ("_private", "node_id", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()
        self.node_id = node_id(self.public)

    @classmethod
    def ephemeral(cls) -> Self:
        """Return a new key that is stored nowhere."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_text(cls, text: Secret[bytes]) -> Self | None:
        """Return the key in a key file; None if the file is damaged or not ours."""
        lines = text.reveal().decode("ascii", "replace").split("\n")
        if len(lines) != 4 or lines[0] != _TITLE or lines[3]:
            return None
        seed = _from_base32(lines[2].removeprefix("key "), PUBLIC_BYTES)
        if seed is None:
            return None
        key = cls(Ed25519PrivateKey.from_private_bytes(seed))
        return key if lines[1] == f"node {key.node_id}" else None

    def to_text(self) -> Secret[bytes]:
        """Return the content of a key file. The id in it reveals a damaged key."""
        seed = _base32(self._private.private_bytes_raw())
        return Secret(f"{_TITLE}\nnode {self.node_id}\nkey {seed}\n".encode())

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature, 64 bytes."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"<key of node {short(self.node_id)}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise InternalError("a node key is neither pickled nor copied")


@dataclass(slots=True)
class ClaimedKey:
    """A key that no other node of this host uses while it is held."""

    key: NodeKey
    number: int
    """1 for the first node of this user here, 2 for the next."""
    _held: FileLock

    def close(self) -> None:
        """Release the key for the next node."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def claim(home: Home) -> ClaimedKey:
    """Return the first key of this user that no running node holds; make it if
    needed."""
    with home.writing() as change:
        for number in range(1, MAX_NODES + 1):
            name = _file_name(number)
            if home.read(name, _FILE_BYTES) is None:
                change.write(name, NodeKey.ephemeral().to_text())
            held = home.try_lock(name)
            if held is not None:
                try:
                    return ClaimedKey(_load(home, name), number, held)
                except BaseException:
                    held.close()
                    raise
    raise ConfigError(f"{home.path}: {MAX_NODES} nodes run here already; stop some")


def first_key(home: Home) -> NodeKey:
    """Return the key of this user's first node here; make it if needed.

    For commands that act in its name while the node itself may run.
    """
    with home.writing() as change:
        if home.read(_FIRST, _FILE_BYTES) is None:
            change.write(_FIRST, NodeKey.ephemeral().to_text())
        return _load(home, _FIRST)


def key_files(home: Home) -> list[str]:
    """Return the names of all key files."""
    return [name for name in home.names() if _NAME.fullmatch(name)]


def _file_name(number: int) -> str:
    return _FIRST if number == 1 else f"{_FIRST}-{number}"


def _load(home: Home, name: str) -> NodeKey:
    text = home.read(name, _FILE_BYTES)
    key = NodeKey.from_text(text) if text is not None else None
    if key is None:
        where = home.path / name
        text_ = f"{where}: not a node key, or not all of it; put a backup in its place"
        raise ConfigError(f"{text_}, or delete it and this machine is a new node")
    return key


def _base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _from_base32(text: str, num_bytes: int) -> bytes | None:
    if len(text) != _ID_CHARACTERS or not text.isascii() or text != text.lower():
        return None
    try:
        raw = base64.b32decode(text.upper() + "====")
    except ValueError:
        return None
    return raw if len(raw) == num_bytes else None
