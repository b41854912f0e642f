"""ClusterSecret: the secret all members share, the keys derived from it, and its
file.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import msgspec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.identity.join_phrase import JoinPhrase
from ringleader.identity.node_key import public_key
from ringleader.identity.secret_value import Secret as Secret
from ringleader.identity.storage.checked_struct import (
    verify_checksum,
    with_checksum,
)
from ringleader.identity.storage.home import Home, HomeWriter
from ringleader.ids import NodeId

FILE = "cluster"
ROOT_BYTES = 32
NAMESPACE_BYTES = 16
MAX_NAME_BYTES = 48
"""Length of names of clusters and nodes: long enough for people, and a pairing frame
holds two of them."""
MAX_ADMINS = 4

_COST = 1 << 16
"""Cost of scrypt: 0.2 s and 64 MiB, once per join. Twice as much does not fit a
small board beside a training program; half as much helps a guesser."""
_BLOCK = 8
_MEMORY_BYTES = 128 * _BLOCK * _COST + (4 << 20)
_SALT = b"ringleader/v1/cluster"
"""The same for all clusters: a machine that joins knows only the phrase."""

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_FILE_LIMIT_BYTES = 4096
_MEND = (
    "run 'ringleader join --force' and give the phrase again: the machine keeps its "
    "key, so the others recognise it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSecret:
    """The secret that all members of a cluster share, and nobody else has."""

    root: Secret[bytes]
    name: str = ""
    """The cluster's name for people; empty after joining by phrase, which does not
    contain it."""
    epoch: int = 1
    """Counts the secrets that this cluster has had."""
    admins: tuple[NodeId, ...] = ()
    """Nodes that may replace the secret; empty if unknown."""

    @classmethod
    def from_phrase(cls, phrase: JoinPhrase, *, name: str = "") -> Self:
        """Return the cluster of a join phrase. Takes 0.2 s, to slow down guessing."""
        root = hashlib.scrypt(
            phrase.text.reveal().encode(),
            salt=_SALT,
            n=_COST,
            r=_BLOCK,
            p=1,
            maxmem=_MEMORY_BYTES,
            dklen=ROOT_BYTES,
        )
        return cls(root=Secret(root), name=clean_name(name))

    def administered_by(self, node: NodeId) -> Self:
        """Return the same cluster with one administrator."""
        return replace(self, admins=(node,))

    @property
    def namespace(self) -> bytes:
        """The 16 bytes that identify the cluster in a hello; they reveal nothing
        else."""
        return self._derive("namespace", NAMESPACE_BYTES).reveal()

    @property
    def tag(self) -> str:
        """The namespace as short text, as in ``k7f3-9qa2``; the same on every
        member."""
        text = base64.b32encode(self.namespace[:5]).decode().lower()
        return f"{text[:4]}-{text[4:]}"

    @property
    def title(self) -> str:
        """The name and the tag, or the tag alone."""
        return f'"{self.name}" ({self.tag})' if self.name else self.tag

    def mdns_key(self) -> Secret[bytes]:
        """Return the 32 byte key that authenticates mDNS records."""
        return self._derive("mdns", 32)

    def sni_key(self) -> Secret[bytes]:
        """Return the 32 byte key that authenticates server names (``sni_auth``)."""
        return self._derive("knock", 32)

    def coordinator_key(self) -> Secret[bytes]:
        """Return the 32 byte key of this cluster's namespace at a coordinator."""
        return self._derive("coordinator", 32)

    def authority_scalar(self) -> int:
        """Return the private key of the certificate authority, a P-256 scalar."""
        wide = self._derive("ca/p256", 48)  # 128 bits more than the order: unbiased
        return int.from_bytes(wide.reveal(), "big") % (_P256_ORDER - 1) + 1

    def _derive(self, purpose: str, length: int) -> Secret[bytes]:
        info = f"ringleader/v1/{purpose}".encode()
        return Secret(HKDFExpand(SHA256(), length, info).derive(self.root.reveal()))


def clean_name(name: str) -> str:
    """Return a name without control characters, cut to fit a frame."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return shown.encode()[:MAX_NAME_BYTES].decode(errors="ignore").strip()


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: Literal[1]
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]
    root: Annotated[bytes, msgspec.Meta(min_length=ROOT_BYTES, max_length=ROOT_BYTES)]
    epoch: Annotated[int, msgspec.Meta(ge=1)]
    admins: Annotated[list[str], msgspec.Meta(max_length=MAX_ADMINS)]
    sha256: str

    def __repr__(self) -> str:
        return "<cluster file>"


def load(home: Home) -> ClusterSecret | None:
    """Return the cluster this user is in, or None."""
    content = home.read(FILE, _FILE_LIMIT_BYTES)
    if content is None:
        return None
    path = home.path / FILE
    try:
        found = from_json(content.reveal(), _File)
        verify_checksum(found)
    except (msgspec.DecodeError, ValueError) as exc:
        what = "damaged"
        if b'"sha256"' not in content.reveal():
            what = "damaged, or of a release before checksums"
        raise ConfigError(f"{path}: {what} ({exc}); {_MEND}") from None
    if any(public_key(admin) is None for admin in found.admins):
        raise ConfigError(f"{path}: damaged (an admin is no node id); {_MEND}")
    return ClusterSecret(
        root=Secret(found.root),
        name=clean_name(found.name),
        epoch=found.epoch,
        admins=tuple(NodeId(admin) for admin in found.admins),
    )


def store(change: HomeWriter, cluster: ClusterSecret) -> None:
    """Store the cluster of this user."""
    content = _File(
        version=1,
        name=cluster.name,
        root=cluster.root.reveal(),
        epoch=cluster.epoch,
        admins=list(cluster.admins),
        sha256="",
    )
    change.write(FILE, Secret(msgspec.json.encode(with_checksum(content))))
