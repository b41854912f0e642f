"""TCP sockets: dial until the deadline, read and write exact lengths."""

from __future__ import annotations

import errno
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count

from ringleader.deadline import Deadline
from ringleader.errors import ConfigError, DeadlineExceeded, PeerLost, PeerUnreachable
from ringleader.transport.link import POLLIN, POLLOUT, wait_ready
from ringleader.transport.send_buffer import widen_if_long

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
STAGGER_S = 0.25
"""Time an address may stay silent before the next one is tried beside it."""
ATTEMPT_S = 3.0
"""Time the last address may stay silent before all are tried again."""
DRAIN_BYTES = 64 << 10

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN, 10035)
"""What a non-blocking connect returns; the last one is Windows' code."""

Address = tuple[str, int]
"""Host, by name or number, and port."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``host:port`` or ``[ipv6]:port``; ConfigError for anything else."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise ConfigError(f"address {text!r}: write host:port, or [ipv6]:port")
    return host, int(port)


def tune(sock: socket.socket) -> None:
    """Make a connected socket non-blocking, and fit it to many messages.

    Buffer sizes are left to the kernel, which tunes them itself, but on long links.
    """
    sock.setblocking(False)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        widen_if_long(sock)


def dial(address: Address, who: int | str, deadline: Deadline) -> socket.socket:
    """Connect to an address, retrying with growing pauses until ``deadline``."""
    return dial_any([address], who, deadline)[0]


def dial_any(
    addresses: Sequence[Address],
    who: int | str,
    deadline: Deadline,
    *,
    is_listening: bool = False,
    pauses: Iterator[float] | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> tuple[socket.socket, Address]:
    """Connect to the first of several addresses of one peer that answers.

    Each round tries all addresses, and every address that a name resolves to. The usual
    reason for a refused connection is a peer that has not started yet, so refusals are
    retried. A peer that ``is_listening`` has started: if all its addresses refuse, its
    process is gone, and PeerUnreachable is raised at once. ``pauses`` are those between
    the rounds, whose number they limit. After each round without an answer
    ``on_failure`` is told what became of each address.
    """
    rests = retry_pauses() if pauses is None else pauses
    last: OSError | None = None
    is_due, rounds = True, 0
    tried = format_addresses(addresses)
    while is_due and not deadline.is_over():
        rounds += 1
        failures: list[_Failure] = []
        try:
            return _race(addresses, deadline, failures)
        except OSError as exc:
            last = exc
            tried = _describe(addresses, failures)
            if on_failure is not None:
                on_failure(tried)
            if is_listening and exc.errno == errno.ECONNREFUSED:
                text = f"{format_addresses(addresses)} refuses connections"
                text += "; its process listened there and is gone"
                raise PeerUnreachable(who, text) from exc
        is_due = sleep_before_retry(rests, deadline)
    limit = f"within {deadline.after_s:.1f} s" if is_due else f"to {rounds} tries"
    text = (
        f"{tried} did not answer {limit}; is it started, and is the port open in its "
        "firewall?"
    )
    raise PeerUnreachable(who, text) from last


def format_addresses(addresses: Sequence[Address]) -> str:
    """Return the addresses of a peer as text for people."""
    return " or ".join(f"{host}:{port}" for host, port in addresses)


def _describe(addresses: Sequence[Address], failures: Sequence[_Failure]) -> str:
    """Return what became of each address; one that was not tried has not answered."""
    why = {address: error.strerror or str(error) for address, error in failures}
    found = [
        f"{format_addresses([each])} ({why.get(each, 'no answer')})"
        for each in addresses
    ]
    return " or ".join(found)


def retry_pauses(tries: int | None = None) -> Iterator[float]:
    """Yield seconds between ``tries`` attempts: growing, and different on every rank.

    None: as many as there is time for.
    """
    pause_s = FIRST_PAUSE_S
    for _ in count() if tries is None else range(tries - 1):
        yield pause_s * random.uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def sleep_before_retry(rests: Iterator[float], deadline: Deadline) -> bool:
    """Sleep for the next of ``retry_pauses()``, but not beyond ``deadline``.

    Returns False at once if there is none: that was the last attempt.
    """
    pause_s = next(rests, None)
    if pause_s is None:
        return False
    until = deadline.within(pause_s)
    while not until.is_over():
        time.sleep(until.wait_s())
    return True


_Failure = tuple[Address, OSError]


def _race(
    addresses: Sequence[Address], deadline: Deadline, failures: list[_Failure]
) -> tuple[socket.socket, Address]:
    """Try every address once; a silent one does not delay the others.

    Adds to ``failures`` what became of each. Raises ConnectionRefusedError only if
    every address refused.
    """
    ahead = chain.from_iterable(_resolve(each, failures) for each in addresses)
    running: dict[socket.socket, Address] = {}
    next_at = until = Deadline.after(0)
    is_more = True
    try:
        while is_more or (running and not until.is_over()):
            if is_more and (not running or next_at.is_over()):
                is_more = _begin(ahead, running, failures)
                next_at = Deadline.after(STAGGER_S)
                until = deadline.within(ATTEMPT_S)
            left_s = min(until.wait_s(), next_at.left_s() if is_more else ATTEMPT_S)
            if running:
                wait_ready([(s.fileno(), POLLOUT) for s in running], left_s)
            winner = _settle(running, failures)
            if winner is not None:
                tune(winner)
                return winner, running.pop(winner)
            is_more = is_more and not deadline.is_over()
    finally:
        for sock in running:
            sock.close()
    silent = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
    failures += [(address, silent) for address in running.values()]
    errors = [error for _, error in failures] or [silent]
    raise min(reversed(errors), key=lambda exc: exc.errno == errno.ECONNREFUSED)


_Target = tuple[Address, socket.AddressFamily, int, tuple[object, ...]]


def _resolve(address: Address, failures: list[_Failure]) -> Iterator[_Target]:
    """Yield the targets of an address; its name is looked up only when needed."""
    try:
        infos = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as exc:
        failures.append((address, exc))
        return
    for family, _, proto, _, sockaddr in infos:
        yield address, family, proto, sockaddr


def _begin(
    ahead: Iterator[_Target],
    running: dict[socket.socket, Address],
    failures: list[_Failure],
) -> bool:
    """Start to connect to the next target; return False if there is none."""
    target = next(ahead, None)
    if target is None:
        return False
    address, family, proto, sockaddr = target
    try:
        sock = socket.socket(family, socket.SOCK_STREAM, proto)
    except OSError as exc:  # an address family this machine does not have
        failures.append((address, exc))
        return True
    sock.setblocking(False)
    number = sock.connect_ex(sockaddr)
    if number in _UNDER_WAY:
        running[sock] = address
    else:
        failures.append((address, OSError(number, os.strerror(number))))
        sock.close()
    return True


def _settle(
    running: dict[socket.socket, Address], failures: list[_Failure]
) -> socket.socket | None:
    """Return the first connected socket; close and drop those that failed."""
    for sock in list(running):
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not number:
            try:
                peer = sock.getpeername()
            except OSError:
                continue  # not connected yet
            # TCP can connect a socket to itself if nobody listens on a port in the
            # ephemeral range and the kernel chose that port for our own end.
            if sock.getsockname() != peer:
                return sock
            number = errno.ECONNREFUSED
        failures.append((running.pop(sock), OSError(number, os.strerror(number))))
        sock.close()
    return None


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
            raise PeerLost(who, f"during the hello: {exc.strerror or exc}") from exc


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
            raise PeerLost(who, f"during the hello: {exc.strerror or exc}") from exc
        if received == 0:
            raise PeerLost(who, "closed the connection during the hello")
        view = view[received:]
    return bytes(data)


def _wait(sock: socket.socket, events: int, who: int | str, deadline: Deadline) -> None:
    if deadline.is_over():
        text = f"silent during the hello for {deadline.after_s:.1f} s"
        raise DeadlineExceeded(who, text)
    wait_ready([(sock.fileno(), events)], deadline.wait_s())


def wait_readable(sock: socket.socket, who: int | str, deadline: Deadline) -> None:
    """Return when a read would not block; DeadlineExceeded if that never happens."""
    while not _is_readable(sock):
        _wait(sock, POLLIN, who, deadline)


def close_gently(sock: socket.socket) -> None:
    """Close a socket so that what we sent last still arrives.

    Unread bytes would turn our close into a reset, which may overtake the data.
    """
    try:
        socket.socket.recv(sock, DRAIN_BYTES)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    sock.close()


def has_hung_up(sock: socket.socket) -> bool:
    """Return whether the other side has closed and left nothing to read."""
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
        pass  # the read itself raises it
    return True
