"""TCP sockets: listening, dialling until the deadline, exact reads and writes."""

from __future__ import annotations

import errno
import random
import socket
import time
from collections.abc import Iterator

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerLost, PeerUnreachable
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready

BACKLOG = 512
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


def parse_address(text: str) -> tuple[str, int]:
    """``host:port`` or ``[ipv6]:port``; ConfigError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise ConfigError(f"address {text!r}: write host:port, or [ipv6]:port")
    return host, int(port)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host`` ("" means every interface, IPv4 and IPv6)."""
    try:
        if not host and socket.has_dualstack_ipv6():
            sock = socket.create_server(
                ("", port),
                family=socket.AF_INET6,
                dualstack_ipv6=True,
                backlog=BACKLOG,
            )
        else:
            family = _family(host)
            sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        where = f"{host or 'every interface'} port {port}"
        if exc.errno == errno.EADDRINUSE:
            text = f"{where} is already in use; stop the other program or choose a port"
            raise ConfigError(text) from exc
        raise ConfigError(f"cannot listen on {where}: {exc.strerror or exc}") from exc
    sock.setblocking(False)
    return sock


def _family(host: str) -> socket.AddressFamily:
    if not host:
        return socket.AF_INET
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return socket.AddressFamily(infos[0][0])


def tune(sock: socket.socket) -> None:
    """Non-blocking, no Nagle; buffers are left to the kernel, which knows better."""
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def dial(address: tuple[str, int], who: int | str, deadline: Deadline) -> socket.socket:
    """Connect, trying again with growing pauses until ``deadline``.

    Every address the name resolves to is tried in each round; a peer that has not
    started yet is the usual case, so a refused connection is no reason to give up.
    """
    rests = pauses()
    last: OSError | None = None
    while not deadline.is_over():
        try:
            return _try_all(address, deadline)
        except OSError as exc:
            last = exc
        rest(rests, deadline)
    text = (
        f"{address[0]}:{address[1]} did not answer within {deadline.after_s:.1f} s "
        f"({last.strerror or last if last else 'no attempt was possible'}); is it "
        "started, and is the port open in its firewall?"
    )
    raise PeerUnreachable(who, text) from last


def pauses() -> Iterator[float]:
    """Seconds between attempts: growing, and not the same on every rank."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def rest(rests: Iterator[float], deadline: Deadline) -> None:
    """Sleep for the next of ``pauses()``, but not beyond ``deadline``."""
    time.sleep(min(next(rests), deadline.left_s()))


def _try_all(address: tuple[str, int], deadline: Deadline) -> socket.socket:
    last: OSError | None = None
    infos = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    for family, kind, proto, _, sockaddr in infos:
        sock = socket.socket(family, kind, proto)
        try:
            # One silent address must not eat the time of the others.
            sock.settimeout(max(0.05, min(3.0, deadline.left_s())))
            sock.connect(sockaddr)
            # A port in the ephemeral range that nobody listens on can be met by
            # itself: our own end, chosen by the kernel, becomes the other end.
            if sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError(errno.ECONNREFUSED, "met itself")
        except OSError as exc:
            sock.close()
            last = exc
        else:
            tune(sock)
            return sock
    raise last or OSError(f"{address[0]} resolves to no address")


def send_all(
    sock: socket.socket, data: bytes, who: int | str, deadline: Deadline
) -> None:
    """Write ``data`` to a non-blocking socket before ``deadline``."""
    view = memoryview(data)
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            _wait(sock, POLLOUT, who, deadline)
        except OSError as exc:
            raise PeerLost(who, f"while greeting: {exc.strerror or exc}") from exc


def recv_exact(
    sock: socket.socket, num_bytes: int, who: int | str, deadline: Deadline
) -> bytes:
    """Read exactly ``num_bytes`` from a non-blocking socket before ``deadline``."""
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        try:
            received = sock.recv_into(view)
        except BlockingIOError:
            _wait(sock, POLLIN, who, deadline)
            continue
        except OSError as exc:
            raise PeerLost(who, f"while greeting: {exc.strerror or exc}") from exc
        if received == 0:
            raise PeerLost(who, "closed the connection while greeting")
        view = view[received:]
    return bytes(data)


def _wait(sock: socket.socket, events: int, who: int | str, deadline: Deadline) -> None:
    if deadline.is_over():
        text = f"silent while greeting for {deadline.after_s:.1f} s"
        raise DeadlineExceeded(who, text)
    wait_ready([(sock.fileno(), events)], deadline.left_s())


def wait_readable(sock: socket.socket, who: int | str, deadline: Deadline) -> None:
    """Return when a read would not block; DeadlineExceeded when that never comes."""
    while not _is_readable(sock):
        _wait(sock, POLLIN, who, deadline)


def has_hung_up(sock: socket.socket) -> bool:
    """Whether the other side has closed and left nothing to read."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_readable(sock: socket.socket) -> bool:
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        pass  # the read itself will say what is wrong
    return True
