"""ListenAddress: where a coordinator listens, and whether others can reach it there."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from dataclasses import dataclass

from ringleader.errors import ConfigError

_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The argument of ``--listen``. An empty host is every interface."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; port 0 is any free one."""
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""  # IPv6 without brackets: the port is ambiguous
        if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
            text = f"--listen: {text[:80]!r}; write HOST:PORT, [IPV6]:PORT or :PORT"
            raise ConfigError(text)
        return cls(host, int(port))

    def __str__(self) -> str:
        return self.with_port(self.port)

    def with_port(self, port: int) -> str:
        """Return the address with another port, as gRPC takes it."""
        host = self.host or "::"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def for_workers(self, own: str, port: int) -> str:
        """Return where workers connect; ``own`` is this machine's address."""
        is_any = self.host in ("", "0.0.0.0", "::")
        return ListenAddress(own if is_any else self.host, port).with_port(port)

    def is_loopback(self) -> bool:
        """Return whether only processes of this machine can connect.

        A name counts as loopback only if all its addresses are; one that cannot be
        resolved now could be anything later.
        """
        if not self.host:
            return False
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return False
        hosts = {str(address[0]).partition("%")[0] for *_, address in found}
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)

    def check_plaintext(self, *, is_allowed: bool) -> None:
        """Raise ConfigError if others could read what is sent here without TLS."""
        if is_allowed or self.is_loopback():
            return
        text = f"{self} can be reached from other machines, and there is no TLS"
        how = "run 'ringleader init' or 'join' here to use the cluster's certificates"
        how = f"{how}, or give --tls-ca, --tls-cert and --tls-key"
        raise ConfigError(f"{text}; {how}; --plaintext goes without")

    def why_not(self) -> str:
        """Say why this address cannot be bound; empty if it can be."""
        hosts = (self.host,) if self.host else ("::", "0.0.0.0")
        reasons = [_why_not(host, self.port) for host in hosts]
        # Every interface: without IPv6, gRPC listens on IPv4 alone.
        return "" if self.host == "" and "" in reasons[1:] else reasons[0]


def _why_not(host: str, port: int) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[0][4])
            probe.listen(1)
    except OSError as exc:
        return _REASONS.get(exc.errno or 0, exc.strerror or str(exc))
    return ""


_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EACCES: "ports below 1024 need root; choose another one",
}
