"""The nodes this user has met while pairing, with the names their users gave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from ringleader.decoding import from_json
from ringleader.errors import ConfigError
from ringleader.identity.cluster_secret import MAX_NAME_BYTES, clean_name
from ringleader.identity.node_key import public_key
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.checked_struct import (
    verify_checksum,
    with_checksum,
)
from ringleader.identity.storage.home import Home, HomeWriter
from ringleader.ids import NodeId, short

FILE = "known_nodes"
MAX_NODES = 1024
"""More than anybody pairs; keeps the file small."""
_FILE_LIMIT_BYTES = 1 << 18

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES)]


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node and the name that its user gave the machine."""

    node: NodeId
    name: str

    def __str__(self) -> str:
        return f'"{self.name}" ({short(self.node)})'


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    nodes: Annotated[dict[str, _Name], msgspec.Meta(max_length=MAX_NODES)]
    sha256: str


def load(home: Home) -> dict[NodeId, str]:
    """Return node -> name, in the order in which they were met."""
    content = home.read(FILE, _FILE_LIMIT_BYTES)
    if content is None:
        return {}
    path = home.path / FILE
    try:
        found = from_json(content.reveal(), _File)
        verify_checksum(found)
    except (msgspec.DecodeError, ValueError) as exc:
        text = f"{path}: damaged ({exc}); delete it, only names are lost"
        raise ConfigError(text) from exc
    strange = [node for node in found.nodes if public_key(node) is None]
    if strange:
        text = f"{path}: {strange[0][:60]!r} is not a node id; delete the file"
        raise ConfigError(f"{text}, only names are lost")
    return {NodeId(node): clean_name(name) for node, name in found.nodes.items()}


def remember(home: Home, change: HomeWriter, member: KnownNode) -> None:
    """Store a node; beyond ``MAX_NODES`` the one met longest ago is dropped."""
    nodes = {**load(home)}
    nodes.pop(member.node, None)
    nodes[member.node] = clean_name(member.name)
    latest = dict(list(nodes.items())[-MAX_NODES:])
    content = with_checksum(_File(1, {str(n): latest[n] for n in latest}, ""))
    change.write(FILE, Secret(msgspec.json.format(msgspec.json.encode(content))))
