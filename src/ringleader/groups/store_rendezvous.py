"""Exchange of addresses and node ids through a torch store.

One value per rank, with blanks between its fields: the addresses as ``[host]:port``,
separated by commas, the channel of the group at the listener there (16 hexadecimal
digits), and, if links are encrypted, the node id. Ranks that do not meet at addresses
publish ``link:KIND`` and what that link needs. A process that can write to the store
can direct ranks to a wrong endpoint, but with encrypted links only a member can answer
there.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import PrefixStore, Store

from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.ids import NodeId
from ringleader.transport import tcp_socket
from ringleader.transport.dialer import MAX_ADDRESSES, Endpoint
from ringleader.transport.own_addresses import OUTSIDE, address_towards

MIN_POLL_S, MAX_POLL_S = 0.005, 0.1

MAX_VALUE_BYTES = 4096
"""Limit of one rank's value: its addresses, which may be names, and its node id."""

_CHANNEL = re.compile(r"[0-9a-f]{16}")
_LINK = "link:"

_NODE = re.compile(r"[a-z2-7]{52}")


def next_turn(store: Store, name: str) -> int:
    """Return the number of the group to form: one more than any rank has formed.

    Ranks form several groups of one name in one store; after destroy_process_group, for
    example, torch uses group ids again. They do not count for themselves: they would
    disagree after an attempt that failed on some of them only.
    """
    key = _formed(name)
    return int(store.get(key)) + 1 if store.check([key]) else 1


def note_formed(store: Store, name: str, turn: int) -> None:
    """Let the ranks form the next group of this name when they ask for one.

    A store that is gone is ignored: no group will be formed in it.
    """
    with contextlib.suppress(RuntimeError):
        store.set(_formed(name), str(turn))


def _formed(name: str) -> str:
    return f"ringleader/{name}/formed"


def publish(
    store: Store,
    key: str,
    hosts: Sequence[str],
    port: int,
    node: NodeId | None,
    channel: int = 0,
) -> None:
    """Publish this rank's addresses, its channel at that port and its node id."""
    store.set(key, encode(hosts, port, node, channel))


def encode(hosts: Sequence[str], port: int, node: NodeId | None, channel: int) -> str:
    """The text of an endpoint, as ``read`` parses it."""
    text = ",".join(f"[{host}]:{port}" for host in hosts) + f" {channel:016x}"
    if node is not None:
        text = f"{text} {node}"
    try:
        read(text.encode(), 0)
    except (ProtocolError, ConfigError) as exc:
        raise ConfigError(
            f"the addresses of this rank, {list(hosts)}: {exc.text}"
        ) from exc
    return text


def look_up(store: Store, key: str, peer: int, deadline: Deadline) -> Endpoint:
    """The endpoint that ``peer`` publishes; waits for it."""
    return read(_value(store, key, peer, deadline), peer)


def _value(store: Store, key: str, peer: int, deadline: Deadline) -> bytes:
    try:
        _wait(store, key, peer, deadline)
        return bytes(store.get(key))
    except PeerUnreachable:
        raise
    except RuntimeError as exc:
        text = f"cannot be looked up, the store is gone ({first_line(exc)})"
        raise PeerUnreachable(peer, text) from exc


def _wait(store: Store, key: str, peer: int, deadline: Deadline) -> None:
    """Wait for a key by asking for it: a wait inside the store is deaf to signals.

    When such a wait times out, torch prints a warning with the name of 127.0.0.1, for
    which it asks name servers.
    """
    pause_s = MIN_POLL_S
    while not store.check([key]):
        if deadline.is_over():
            text = f"did not join within {deadline.after_s:.1f} s"
            raise PeerUnreachable(peer, text)
        time.sleep(min(pause_s, max(0.0, deadline.left_s())))
        pause_s = min(2 * pause_s, MAX_POLL_S)


def publish_link(store: Store, key: str, kind: str, value: str) -> None:
    """Publish what a rank needs to know of this one to open a link of ``kind``."""
    store.set(key, f"{_LINK}{kind} {value}")


def look_up_link(
    store: Store, key: str, kind: str, peer: int, deadline: Deadline
) -> str:
    """What ``peer`` publishes for links of ``kind``; waits for it."""
    value = _value(store, key, peer, deadline).decode(errors="replace")
    name, _, rest = value.removeprefix(_LINK).partition(" ")
    if not value.startswith(_LINK) or name != kind:
        text = f"does not use the transport {kind}, and we do"
        raise PeerRefused(peer, f"{text}; choose the same one on all ranks")
    return rest


def read(value: bytes, peer: int) -> Endpoint:
    """Parse a value of the store; raise ProtocolError if it is invalid."""
    if value.startswith(_LINK.encode()):
        kind = value.decode(errors="replace").removeprefix(_LINK).split(" ")[0]
        text = f"uses the transport {kind[:16]!r}, and we do not"
        raise PeerRefused(peer, f"{text}; choose the same one on all ranks")
    if len(value) > MAX_VALUE_BYTES:
        text = f"published {len(value)} bytes as its address, limit {MAX_VALUE_BYTES}"
        raise ProtocolError(peer, text)
    text, _, rest = value.decode(errors="replace").partition(" ")
    channel, _, node = rest.partition(" ")
    parts = text.split(",")
    if len(parts) > MAX_ADDRESSES:
        text = f"published {len(parts)} addresses, limit {MAX_ADDRESSES}"
        raise ProtocolError(peer, text)
    if not _CHANNEL.fullmatch(channel):
        raise ProtocolError(peer, f"published {channel[:64]!r} as its channel")
    if node and not _NODE.fullmatch(node):
        raise ProtocolError(peer, f"published {node[:64]!r} as its node id")
    try:
        addresses = tuple(tcp_socket.parse_address(part) for part in parts)
    except ConfigError as exc:
        raise ProtocolError(peer, f"published an {exc.text[:300]}") from exc
    return Endpoint(addresses, NodeId(node) if node else None, int(channel, 16))


def check_alike(endpoints: Sequence[Endpoint], *, encrypts: bool) -> None:
    """Raise for the first rank that encrypts while this one does not, or vice versa."""
    for peer, endpoint in enumerate(endpoints):
        if encrypts and endpoint.node is None:
            text = "does not encrypt and we do; is RINGLEADER_CREDENTIALS set there?"
            raise PeerUntrusted(peer, text)
        if not encrypts and endpoint.node is not None:
            text = "encrypts and we do not; is RINGLEADER_CREDENTIALS set here?"
            raise PeerRefused(peer, text)


def own_address(store: Store) -> str:
    """The address of this host on the route to the store, and so to the other ranks.

    A file store has no address, and a host may resolve its own name to 127.0.1.1, which
    others cannot reach: then it is the address of the route out of this machine.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", "")
    if host:
        found = address_towards(host, getattr(store, "port", 1) or 1)
        is_local = host == "localhost" or host.startswith(("127.", "::1"))
        if found and (is_local or not found.startswith(("127.", "::1"))):
            return found
    return address_towards(OUTSIDE, 9) or "127.0.0.1"


def first_line(exc: BaseException) -> str:
    """The first line of an error of torch; the rest is a stack trace."""
    return (str(exc).splitlines() or [type(exc).__name__])[0][:200]
