"""Listening TCP sockets, on one port, on any free one or on one of a range."""

from __future__ import annotations

import errno
import socket

from ringleader.errors import ConfigError

BACKLOG = 512


def listen(host: str, port: int | range) -> socket.socket:
    """Return a listening socket on ``host``; "" is every interface, IPv4 and IPv6.

    Of a range of ports, the first free one is used; port 0 is any free one.
    """
    ports = port if isinstance(port, range) else range(port, port + 1)
    for each in ports:
        try:
            sock = _open(host, each)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE and each != ports[-1]:
                continue
            raise ConfigError(_explain(host, ports, exc)) from exc
        sock.setblocking(False)
        return sock
    raise ConfigError("listen: the range of ports is empty")


def _open(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    return socket.create_server((host, port), family=_family(host), backlog=BACKLOG)


def _family(host: str) -> socket.AddressFamily:
    if not host:
        return socket.AF_INET
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return socket.AddressFamily(infos[0][0])


def _explain(host: str, ports: range, exc: OSError) -> str:
    where = f"{host or 'every interface'} port {ports[0]}"
    if exc.errno != errno.EADDRINUSE:
        return f"cannot listen on {where}: {exc.strerror or exc}"
    if len(ports) == 1:
        return f"{where} is already in use; stop the other program or choose a port"
    return (
        f"ports {ports[0]}-{ports[-1]} are all in use on this machine; every rank "
        "here needs one port, and the agent one more: widen the range"
    )
