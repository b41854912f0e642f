"""A listener that forms a group lives on, whoever else comes to its door."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import PeerRefused, PeerUnreachable, ProtocolError
from ringleader.testing.inprocess import run_threads
from ringleader.testing.link_driver import receive, send
from ringleader.transport import listener as listeners
from ringleader.transport import mesh as meshes
from ringleader.transport import tcp
from ringleader.transport.listener import Listener
from ringleader.transport.mesh import Mesh, MeshConfig
from ringleader.wire import hello as wire

pytestmark = pytest.mark.timeout(60)

GROUP = 0xC0FFEE
FORM_S = 15.0

HELLO = wire.Hello(
    purpose=wire.Purpose.MAIL,
    group=GROUP,
    from_rank=1,
    to_rank=0,
    size=2,
    incarnation=bytes(range(16)),
    host=bytes(16),
)


@contextlib.contextmanager
def open_listeners(count: int) -> Iterator[list[Listener]]:
    made = [Listener(tcp.listen("127.0.0.1", 0)) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def config(rank: int, doors: list[Listener], **changes: object) -> MeshConfig:
    fields: dict[str, object] = {
        "rank": rank,
        "size": len(doors),
        "group": GROUP,
        "addresses": tuple(("127.0.0.1", door.port) for door in doors),
        "share_memory": False,
    }
    return MeshConfig(**{**fields, **changes})  # type: ignore[arg-type]


def join(rank: int, doors: list[Listener], **changes: object) -> Mesh:
    deadline = Deadline.after(FORM_S)
    return meshes.connect(config(rank, doors, **changes), doors[rank], deadline)


def form_all(doors: list[Listener], **changes: object) -> list[Mesh]:
    bodies = [lambda r=r: join(r, doors, **changes) for r in range(len(doors))]
    return run_threads(bodies, 30.0)


def assert_connected(mesh_list: list[Mesh]) -> None:
    """Every pair exchanges a word over its bulk link; then all hang up."""
    for a, mesh in enumerate(mesh_list):
        assert mesh.mail.keys() == mesh.bulk.keys() == {*range(len(mesh_list))} - {a}
        for b, link in mesh.bulk.items():
            send(link, f"{a} to {b}".encode())
            assert receive(mesh_list[b].bulk[a], 6) == f"{a} to {b}".encode()
    for mesh in mesh_list:
        mesh.close()


def knock(door: Listener) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", door.port), 5.0)
    sock.settimeout(5.0)
    return sock


def hang_up_hard(sock: socket.socket) -> None:
    """A reset instead of an end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


whole_hello = wire.encode_hello(HELLO)
other_group = wire.encode_hello(
    wire.Hello(**{f: getattr(HELLO, f) for f in HELLO.__slots__} | {"group": 1})
)


def say_half(sock: socket.socket) -> None:
    sock.sendall(whole_hello[:100])
    sock.close()


STRANGERS: dict[str, Callable[[socket.socket], object]] = {
    "silent": lambda sock: None,
    "hangs up": lambda sock: sock.close(),
    "resets": hang_up_hard,
    "garbage": lambda sock: sock.sendall(bytes(range(256))),
    "zeros": lambda sock: sock.sendall(bytes(192)),
    "http": lambda sock: sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "tls": lambda sock: sock.sendall(bytes.fromhex("16030100c8010000c40303") * 20),
    "half a hello": lambda sock: sock.sendall(whole_hello[:100]),
    "half a hello and out": say_half,
    "hello and more": lambda sock: sock.sendall(other_group + bytes(100_000)),
    "broken checksum": lambda sock: sock.sendall(whole_hello[:-1] + b"\0"),
    "another group": lambda sock: sock.sendall(other_group),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_group_forms_in_spite_of_strangers(stranger: str) -> None:
    with open_listeners(2) as doors:
        guests = [knock(door) for door in doors for _ in range(3)]
        for guest in guests:
            STRANGERS[stranger](guest)
        assert_connected(form_all(doors))
        for guest in guests:
            guest.close()


def test_a_group_shares_memory_in_spite_of_strangers_at_the_unix_door() -> None:
    with open_listeners(2) as doors:
        guests = []
        for door in doors:
            guest = socket.socket(socket.AF_UNIX)
            guest.connect(listeners.door_path(door.door))
            guest.sendall(b"is this the X server?".ljust(192))
            guests.append(guest)
        made = form_all(doors, share_memory=True)
        assert [link.kind for mesh in made for link in mesh.bulk.values()] == [
            "shm"
        ] * 2
        assert_connected(made)
        assert "this host: hello" in doors[0].rejected[0]
        for guest in guests:
            guest.close()


def test_a_crowd_of_silent_strangers_is_shown_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "GREETING_S", 0.2)
    with open_listeners(2) as doors:
        guests = [knock(doors[0]) for _ in range(listeners.MAX_STRANGERS + 40)]
        assert_connected(form_all(doors))
        assert "never said hello" in doors[0].rejected[-1]
        for guest in guests:
            guest.close()


def test_another_version_is_told_so_and_the_group_forms() -> None:
    newer = whole_hello[:8] + b"\2\0" + whole_hello[10:] + b"a longer hello"
    with open_listeners(2) as doors, knock(doors[0]) as guest:
        guest.sendall(newer[:192])
        assert_connected(form_all(doors))
        data = guest.recv(wire.ANSWER_BYTES, socket.MSG_WAITALL)
        answer = wire.decode_answer(data, 0)
        assert answer.status is wire.Status.BAD_VERSION
        assert guest.recv(1) == b"", "who speaks another version is shown out"
        assert "another version" in doors[0].rejected[0]


@contextlib.contextmanager
def impostor(say: bytes) -> Iterator[tuple[int, list[int]]]:
    """(port, calls): somebody else's server, which says ``say`` and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))
    calls: list[int] = []

    def serve() -> None:
        while True:
            try:
                sock, _ = server.accept()
            except OSError:
                return
            calls.append(1)
            with contextlib.suppress(OSError):
                sock.settimeout(5.0)
                sock.recv(wire.HELLO_BYTES, socket.MSG_WAITALL)
                sock.sendall(say)
            sock.close()

    thread = threading.Thread(target=serve, name="impostor", daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], calls
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5.0)


def dial_impostor(port: int, doors: list[Listener], limit_s: float) -> Mesh:
    addresses = (("127.0.0.1", port), ("127.0.0.1", doors[0].port))
    settings = config(1, doors, size=2, addresses=addresses)
    return meshes.connect(settings, doors[0], Deadline.after(limit_s))


ok = wire.Answer(
    status=wire.Status.OK, rank=0, incarnation=bytes(16), host=bytes(16), door=b""
)
ok_bytes = wire.encode_answer(ok)


@pytest.mark.parametrize(
    ("say", "error", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n".ljust(128), ProtocolError, "does not speak"),
        (
            ok_bytes[:8] + b"\2\0" + ok_bytes[10:],
            ProtocolError,
            "version 2, we speak 1",
        ),
        (ok_bytes[:-4] + bytes(4), ProtocolError, "checksum"),
        (
            wire.encode_answer(
                wire.Answer(
                    status=wire.Status.OK,
                    rank=7,
                    incarnation=bytes(16),
                    host=bytes(16),
                )
            ),
            ProtocolError,
            "answers as rank 7",
        ),
        (
            wire.encode_answer(
                wire.Answer(
                    status=wire.Status.BAD_VERSION,
                    rank=0,
                    incarnation=bytes(16),
                    host=bytes(16),
                )
            ),
            PeerRefused,
            "upgrade the older side",
        ),
    ],
    ids=["ssh", "newer", "checksum", "wrong rank", "refused"],
)
def test_whoever_else_answers_at_the_address_is_named_at_once(
    say: bytes, error: type[ProtocolError | PeerRefused], text: str
) -> None:
    with (
        open_listeners(1) as doors,
        impostor(say) as (port, calls),
        pytest.raises(error, match=text) as caught,
    ):
        dial_impostor(port, doors, FORM_S)
    assert caught.value.peer == 0
    assert len(calls) == 1


def test_a_server_that_just_hangs_up_is_not_hammered() -> None:
    with (
        open_listeners(1) as doors,
        impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, calls),
        pytest.raises(PeerUnreachable, match="closed the connection") as caught,
    ):
        dial_impostor(port, doors, 1.0)
    assert caught.value.peer == 0
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert 2 <= len(calls) <= 20
