"""StaticPeers resolves peers that the user named: ``host:port`` from a flag or
variable.

For networks without multicast. Names are looked up again and again, because a machine
may get its address, or its name server, later than we start.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError

MAX_PEERS = 256
"""Each name whose lookup hangs occupies a thread."""

MAX_ADDRESSES = 8
"""Addresses of one name; a host has a few, and all of them are tried."""

_PORT = re.compile(r"[0-9]{1,5}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")

ResolveName = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class StaticPeer:
    """A node that the user named."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ResolvedPeer:
    """The result of a lookup: addresses in the order to try, or why there are none."""

    peer: StaticPeer
    addresses: tuple[str, ...]
    trouble: str = ""


def parse(text: str, *, default_port: int | None = None) -> list[StaticPeer]:
    """Parse ``host:port,[ipv6]:port,...``; each peer is returned once."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) > MAX_PEERS:
        raise ConfigError(f"peers: {len(words)} names, the limit is {MAX_PEERS}")
    return list(dict.fromkeys(_parse_one(word, default_port) for word in words))


def _parse_one(word: str, default_port: int | None) -> StaticPeer:
    host, port = _split(word)
    if not port and default_port is not None:
        port = str(default_port)
    if _is_host(host) and _PORT.fullmatch(port) and 0 < int(port) < 65536:
        return StaticPeer(host, int(port))
    raise ConfigError(f"peers: {word[:80]!r}: write host:port, or [ipv6]:port")


def _split(word: str) -> tuple[str, str]:
    """Return host and port, either of which may be empty."""
    if word.startswith("["):
        host, bracket, port = word[1:].partition("]")
        is_good = bracket and ":" in host and (not port or port.startswith(":"))
        return (host, port[1:]) if is_good else ("", "")
    if word.count(":") > 1:  # IPv6 without brackets: the port is ambiguous
        return (word, "") if _is_ip(word) else ("", "")
    host, _, port = word.partition(":")
    return host, port


def _is_host(host: str) -> bool:
    return _is_ip(host) if ":" in host else _HOST.fullmatch(host) is not None


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def interleave(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return IPv6 and IPv4 addresses in turn, the system's first choice first.

    So a family without a route delays the other by one attempt only.
    """
    unique = list(dict.fromkeys(addresses))
    first = [a for a in unique if (":" in a) == (":" in unique[0])]
    other = [a for a in unique if a not in first]
    turns = chain.from_iterable(zip_longest(first, other))
    return tuple(a for a in turns if a is not None)[:MAX_ADDRESSES]


def look_up(host: str, port: int) -> list[str]:
    """Return all addresses of a name, in the system's order; may block for long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class StaticPeers:
    """The named peers, resolved on demand. Use it from one asyncio loop."""

    def __init__(
        self, peers: Sequence[StaticPeer], *, look_up: ResolveName = look_up
    ) -> None:
        self.peers = tuple(peers)
        self._look_up = look_up
        self._under_way: dict[StaticPeer, asyncio.Future[Sequence[str] | OSError]] = {}

    async def resolve(self, deadline: Deadline) -> list[ResolvedPeer]:
        """Look up all names at once; those not resolved in time have no address."""
        return await asyncio.gather(*(self._one(p, deadline) for p in self.peers))

    async def _one(self, peer: StaticPeer, deadline: Deadline) -> ResolvedPeer:
        if _is_ip(peer.host):
            return ResolvedPeer(peer, (peer.host,))
        # One thread per name: it cannot be stopped, so the next call waits for it.
        if peer not in self._under_way:
            self._under_way[peer] = self._start(peer)
        asked = self._under_way[peer]
        await asyncio.wait([asked], timeout=deadline.left_s())
        if not asked.done():
            late = f"no answer from the name server within {deadline.after_s:g} s"
            return ResolvedPeer(peer, (), f"{peer.host}: {late}")
        self._under_way.pop(peer, None)
        found = asked.result()
        if isinstance(found, OSError):
            return ResolvedPeer(peer, (), f"{peer.host}: {found.strerror or found}")
        return ResolvedPeer(peer, interleave(found))

    def _start(self, peer: StaticPeer) -> asyncio.Future[Sequence[str] | OSError]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str] | OSError] = loop.create_future()

        def deliver(found: Sequence[str] | OSError) -> None:
            if not answer.done():
                answer.set_result(found)

        def work() -> None:
            found: Sequence[str] | OSError
            try:
                found = self._look_up(peer.host, peer.port)
            except OSError as exc:  # includes socket.gaierror
                found = exc
            except UnicodeError as exc:  # not a valid DNS name
                found = OSError(str(exc))
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(deliver, found)

        # A daemon thread: asyncio's own threads would delay the end of the program.
        name = f"look up {peer.host}"
        threading.Thread(target=work, name=name, daemon=True).start()
        return answer
