"""Requests of a stranger who knows the protocols and breaks them, seeded.

``request(door, number)`` is what one connection sends, in pieces. The kinds are those
that have broken servers: text that no encoding holds, numbers beyond 64 bits, deep
JSON, lengths that lie, headers twice, frames out of order, handshakes that stop.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import ssl
import struct
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_HOLD_S = 2.0
"""How long a connection waits for its answer; then it is dropped."""
_UNDECODABLE = ("\\ud800", "\\udfff\\ud800", "\\u0000", "\\u202e", "é" * 50, "\\ud83d")
_NUMBERS = (
    "1e999", "-1e999", "NaN", "-Infinity", "9" * 5000, "-0", "1e-999",
    "18446744073709551616", "-9223372036854775809", "0.1e", "0x10", "1_000", "٣",
)  # fmt: skip
_JUNK = (b"\xff\xfe", b"\x00", b"\r", b"\n", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"")
_LISTEN_S = 0.05
"""After the first answer: gRPC and HTTP/1.1 keep connections open."""
_TARGETS = (
    "?", "?job=%ff&rank=0", "?job=%ed%a0%80&rank=" + "9" * 4000, "/%00", "?a=1" * 90,
    "?rank=" + "&a=" * 300, "/../../etc/passwd", "#x", "%", "?wait=nan", "\xff",
)  # fmt: skip


@dataclass(frozen=True)
class Door:
    """A listening port, and what an honest client would say to it."""

    name: str
    port: int
    protocol: str
    """http, grpc, or tls: its first record is all that we send."""
    client: ssl.SSLContext | None = None
    """With which some connections get through TLS to the protocol."""
    honest: tuple[tuple[str, str, str], ...] = (("GET", "/", ""),)
    """Requests: method, path, body."""
    at_once: int = 24
    """Connections at a time."""


def request(door: Door, number: int) -> list[bytes]:
    """Return what connection ``number`` sends; the same for the same number."""
    chance = random.Random(f"{door.name} {number}")
    if _is_silent(door, number):
        return _split(_hello(door, chance), chance)
    makers = {"http": _http, "grpc": _grpc, "tls": _hello}
    data = makers[door.protocol](door, chance)
    if chance.random() < 0.1:
        data = _flip(data, chance)
    if chance.random() < 0.05:
        data = data[: chance.randrange(len(data) + 1)]
    return _split(data, chance)


def _is_silent(door: Door, number: int) -> bool:
    """Whether this connection stops in its TLS handshake, which costs less time."""
    return door.protocol == "tls" or (door.client is not None and number % 10 != 0)


def _split(data: bytes, chance: random.Random) -> list[bytes]:
    """Mostly in one piece, so that many come through; a few drip."""
    if chance.random() < 0.9 or len(data) < 2:
        return [data]
    cut = chance.randrange(1, len(data))
    return [data[:cut], data[cut:]]


def _flip(data: bytes, chance: random.Random) -> bytes:
    """Change, add or remove some bytes."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        at = chance.randrange(len(found) + 1)
        found[at : at + chance.randrange(3)] = chance.choice(
            (chance.randbytes(2), chance.choice(_JUNK), b"\r\n", b"\\ud800")
        )
    return bytes(found)


# -- HTTP and JSON -------------------------------------------------------------------


def _http(door: Door, chance: random.Random) -> bytes:
    """Return a request in which one thing is wrong, or several."""
    parts = ("body", "body", "body", "body", "headers", "target", "line", "length")
    wrong = {chance.choice(parts) for _ in range(chance.choice((1, 1, 1, 3)))}
    with_body = [each for each in door.honest if each[2]] or door.honest
    method, target, body = chance.choice(with_body if "body" in wrong else door.honest)
    if "body" in wrong:
        body = _json(body, chance)
    content = body.encode("utf-8", "surrogatepass")
    host = f"127.0.0.1:{door.port}"
    lines = [
        f"Origin: http{'s' * (door.client is not None)}://{host}",
    ]
    if "headers" in wrong:
        host = chance.choice((host, host, host, "evil.example", "[::1", ""))
        lines += _odd_headers(chance, len(content))
    length = _length(chance, len(content)) if "length" in wrong else len(content)
    lines += [f"Host: {host}", "Content-Type: application/json"]
    lines += [f"Content-Length: {length}"] if body else []
    version = "HTTP/1.1"
    if "line" in wrong:
        method = chance.choice(("PRI", "get", "CONNECT", "X" * 500, "", "\x00"))
        version = chance.choice((version, "HTTP/1.0", "HTTP/9", "HTTP/1.1 x", ""))
    if "target" in wrong:
        target += chance.choice(_TARGETS)
    head = "\r\n".join([f"{method} {target} {version}".rstrip(), *lines, "", ""])
    return head.encode("latin-1", "replace") + content


def _length(chance: random.Random, length: int) -> str:
    longer = str(length + 7)
    return chance.choice((longer, "-1", "1e3", "9" * 30, "", "0x10", "\xb2", "5, 6"))


def _odd_headers(chance: random.Random, length: int) -> list[str]:
    kinds = [
        ["X-Big: " + "x" * chance.choice((100, 9000, 70_000))],
        [f"X-{i}: y" for i in range(chance.choice((10, 70, 400)))],
        ["Transfer-Encoding: chunked"],
        ["Transfer-Encoding: \x0bchunked", "Content-Length: 0"],
        [f"Content-Length: {length}", "Content-Length: 1"],
        ["Authorization: Bearer \xff\xfe"],
        ["Authorization: Bearer " + "A" * chance.choice((1, 43, 5000))],
        ["Authorization: Join \xe9", "X-Auth-PIN: \xff1234"],
        ["X-Auth-PIN: 12345678", "X-Worker-Version: " + "9" * 300],
        ["Authorization: Bearer x", "Authorization: Bearer y"],
        ["Content-Encoding: gzip", "Accept-Encoding: \x80"],
        ["Expect: 100-continue"],
        ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: \xff"],
        ["Range: bytes=-9-9", "If-None-Match: \xff"],
        [": no name", " folded: x", "no colon"],
        ["Sec-Fetch-Site: cross-site", "Origin: null"],
        ["Accept-Encoding: gzip;q=\xb2, gzip", "Connection: keep-alive, close"],
        [],
    ]
    return chance.choice(kinds)


def _json(honest: str, chance: random.Random) -> str:
    """Return a body like ``honest`` with one thing wrong, as text of JSON."""
    if not honest:
        return ""
    kind = chance.randrange(8)
    if kind == 0:
        deep = chance.choice((10, 900, 4000))
        return chance.choice(("[", '{"a":')) * deep + "]" * chance.choice((0, deep))
    if kind == 1:
        return chance.choice(
            ("null", "[]", "7", '""', "{", "", "\ufeff{}", "true", "\x00")
        )
    try:
        found = json.loads(honest)
    except ValueError:
        return honest
    if not found:
        return honest
    name = chance.choice(list(found))
    parts = [
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in found.items()
        if key != name
    ]
    texts = [f'"{each}"' for each in _UNDECODABLE]
    wrong = [
        *texts,
        *texts,
        *_NUMBERS,
        "{}",
        "[]",
        "null",
        "true",
        '"' + "x" * 3000 + '"',
    ]
    if chance.random() < 0.2:
        name = chance.choice(_UNDECODABLE)
        parts.append(f'"{name}": 1')
        return "{" + ", ".join(parts) + "}"
    parts.append(f"{json.dumps(name)}: {chance.choice(wrong)}")
    if kind == 2:
        parts.append(f"{json.dumps(name)}: {chance.choice(wrong)}")  # twice
    return "{" + ", ".join(parts) + "}"


# -- TLS -----------------------------------------------------------------------------


TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE


def _client_hello(server_name: str | None) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = TRUSTING.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=server_name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


_HELLOS: list[bytes] = []


def _hello(_: Door, chance: random.Random) -> bytes:
    """Return a client hello, or another first record, with something wrong."""
    if not _HELLOS:
        names = (None, "x" * 52 + ".k.internal", "localhost", "n" * 63 + "." + "m" * 60)
        _HELLOS.extend(map(_client_hello, names))
    whole = chance.choice(_HELLOS)
    match chance.randrange(8):
        case 0:
            return whole  # and nothing after it
        case 1:
            return whole[: chance.randrange(len(whole))]
        case 2:  # a server name that is no text
            return whole.replace(
                b"localhost",
                chance.choice((b"\xff\xfe\x00\xed\xa0\x80lhx", b"lo\x00alhost")),
            )
        case 3:
            return (
                bytes([chance.randrange(20, 25), 3, chance.randrange(5)])
                + struct.pack(">H", chance.choice((0, 2, 16384, 65535)))
                + chance.randbytes(chance.choice((0, 2, 300)))
            )
        case 4:
            return (
                whole
                + b"\x15\x03\x03\x00\x02"
                + bytes([chance.randrange(4), chance.randrange(256)])
            )
        case 5:
            return chance.randbytes(chance.choice((1, 5, 100, 5000)))
        case 6:
            return b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n"
        case _:
            return _flip(whole, chance)


# -- HTTP/2, gRPC and protobuf -------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + body
    )


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not compressed; lengths below 127 only."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(path: str, message: bytes) -> bytes:
    """Return the frames of an honest call."""
    body = struct.pack(">BI", 0, len(message)) + message
    headers = b"".join(_literal(*each) for each in _call_headers(path))
    frames = _frame(4, 0, 0, b"") + _frame(1, 4, 1, headers) + _frame(0, 1, 1, body)
    return PREFACE + frames


def _call_headers(path: str) -> list[tuple[bytes, bytes]]:
    return [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path.encode()),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]


def _grpc(door: Door, chance: random.Random) -> bytes:
    """Return a connection with a call whose frames or message are wrong."""
    _, path, _ = chance.choice(door.honest)
    is_odd = chance.random() < 0.4  # else the message is
    odd = chance.choice(
        ((b"grpc-timeout", b"99999999H"), (b"grpc-timeout", b"\xff"),
         (b"grpc-encoding", b"gzip"), (b"grpc-encoding", b"x\x00y"), (b"a-bin", b"%%%"),
         (b"", b""), (b"A", b"\xff"), (b":path", b"/"), (b"user-agent", b"\x80" * 90))
    )  # fmt: skip
    headers = [_literal(*each) for each in _call_headers(path)]
    if is_odd:
        headers[chance.randrange(len(headers))] = _literal(*odd)
    message = _protobuf(chance)
    length = chance.choice((len(message),) * 8 + (0, 2**32 - 1, len(message) + 9))
    kind = chance.choice((0, 0, 0, 0, 1, 77))
    body = bytes([kind]) + struct.pack(">I", length) + message
    frames = [
        _frame(4, 0, 0, chance.randbytes(6) if chance.random() < 0.1 else b""),
        _frame(1, 4, 1, b"".join(headers)),
        _frame(0, chance.choice((0, 1, 1, 1, 9)), 1, body),
    ]
    for _ in range(chance.choice((0, 1, 4)) if is_odd else 0):
        odd_frame = _frame(
            chance.randrange(12),
            chance.randrange(256),
            chance.choice((0, 1, 2, 3, 2**31)),
            chance.randbytes(chance.choice((0, 4, 8, 40))),
        )
        frames.insert(chance.randrange(len(frames) + 1), odd_frame)
    return (PREFACE if chance.random() < 0.95 else b"") + b"".join(frames)


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _protobuf(chance: random.Random) -> bytes:
    """Return fields as a request of a worker has them, of any value and type."""
    texts = (
        b"w1",
        b"0" * 32,
        b"\xed\xa0\x80",
        b"\xff",
        b"\x00",
        b"\x1b[31m",
        b"x" * 3000,
        b"127.0.0.1:1",
        "\u202e".encode(),
    )
    found = b""
    for _ in range(chance.choice((0, 1, 4, 6))):
        number = chance.choice((1, 1, 2, 3, 4, 5, 15, 0))
        match chance.randrange(6):
            case 0:
                key = bytes(chance.randrange(3) * 16)
                name = chance.choice(texts)
                inner = (
                    b"\x0a"
                    + _varint(len(key))
                    + key
                    + b"\x12"
                    + _varint(len(name))
                    + name
                )
                found += bytes([number << 3 | 2]) + _varint(len(inner)) + inner
            case 1 | 2:
                text = chance.choice(texts)
                found += bytes([number << 3 | 2]) + _varint(len(text)) + text
            case 3:
                found += bytes([number << 3]) + _varint(
                    chance.choice((0, 1, 2**63, 2**64 - 1, 2**70))
                )
            case 4:
                found += bytes([number << 3 | 1]) + struct.pack(
                    "<d", chance.choice((float("nan"), float("inf"), -1e308))
                )
            case _:
                found += bytes([number << 3 | chance.randrange(8)])
    return found


# -- sending -------------------------------------------------------------------------


@dataclass
class Tally:
    """What came back."""

    sent: int = 0
    answered: int = 0
    """Connections on which the server said something."""
    refused: int = 0
    """Connections that could not be made."""
    statuses: dict[str, int] = field(default_factory=dict)


@dataclass
class _Line:
    sock: socket.socket
    pieces: deque[bytes]
    until_s: float
    is_connected: bool = False
    has_answer: bool = False


def send_all(door: Door, first: int, count: int) -> Tally:
    """Send the requests ``first`` to ``first + count``, many at a time."""
    tally = Tally()
    selector = selectors.DefaultSelector()
    lines: dict[socket.socket, _Line] = {}
    numbers = iter(range(first, first + count))
    is_over = False
    while lines or not is_over:
        while len(lines) < door.at_once and not is_over:
            number = next(numbers, None)
            if number is None:
                is_over = True
                break
            line = _open(door, number)
            if line is None:
                tally.refused += 1
                continue
            lines[line.sock] = line
            selector.register(line.sock, selectors.EVENT_WRITE, line)
            tally.sent += 1
        for key, _ in selector.select(0.05):
            line = key.data
            if not _advance(line, selector, tally):
                selector.unregister(line.sock)
                del lines[line.sock]
                line.sock.close()
        now_s = time.monotonic()
        for line in [each for each in lines.values() if each.until_s < now_s]:
            selector.unregister(line.sock)
            del lines[line.sock]
            line.sock.close()
    selector.close()
    return tally


def _open(door: Door, number: int) -> _Line | None:
    pieces = deque(request(door, number))
    is_silent = _is_silent(door, number)  # then it is told nothing, too
    sock = socket.socket()
    # No port of ours may wait in TIME_WAIT: there are 28,000 of them.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    try:
        sock.settimeout(60)
        sock.connect(("127.0.0.1", door.port))
        if door.client is not None and not is_silent:
            sock = door.client.wrap_socket(sock)
        sock.settimeout(0)
    except OSError:
        sock.close()
        return None
    hold_s = _HOLD_S if number % 50 == 0 else 0.02 if is_silent else 0.3
    return _Line(sock, pieces, time.monotonic() + hold_s)


def _advance(line: _Line, selector: selectors.BaseSelector, tally: Tally) -> bool:
    """Send the next piece, or read; return whether to go on."""
    try:
        if line.pieces:
            piece = line.pieces.popleft()
            sent = line.sock.send(piece) if piece else 0
            if sent < len(piece):
                line.pieces.appendleft(piece[sent:])
            elif not line.pieces:
                selector.modify(line.sock, selectors.EVENT_READ, line)
            return True
        data = line.sock.recv(65536)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    except OSError:
        return False
    if data and not line.has_answer:
        line.has_answer = True
        line.until_s = min(line.until_s, time.monotonic() + _LISTEN_S)
        tally.answered += 1
        if data.startswith(b"HTTP/1."):
            status = data[9:12].decode("latin-1")
            tally.statuses[status] = tally.statuses.get(status, 0) + 1
    return bool(data)
