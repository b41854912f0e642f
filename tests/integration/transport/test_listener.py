"""A listener keeps forming its group while strangers connect, flood or misbehave."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest

from ringleader.deadline import Deadline
from ringleader.errors import (
    DeadlineExceeded,
    PeerError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    ProtocolError,
)
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.testing.link_driver import receive, send
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import listener as listener_module
from ringleader.transport import mesh as meshes
from ringleader.transport import unauthenticated_limits
from ringleader.transport.dialer import Endpoint
from ringleader.transport.fd_exchange import unix_socket_path
from ringleader.transport.listener import Listener
from ringleader.transport.mesh import Mesh
from ringleader.transport.mesh_config import MeshConfig
from ringleader.transport.secure_socket import SecureSocket
from ringleader.wire import hello as wire

GROUP = 0xC0FFEE
FORM_S = 90.0

HELLO = wire.Hello(
    purpose=wire.Purpose.CONTROL,
    group=GROUP,
    from_rank=1,
    to_rank=0,
    size=2,
    incarnation=bytes(range(16)),
    host=bytes(16),
)


def issue(cluster: int = 0) -> Credentials:
    """A new node of a cluster."""
    secret = ClusterSecret(root=Secret(bytes([cluster]) * 32))
    return Credentials.issue(secret, NodeKey.ephemeral())


@cache
def member(rank: int) -> Credentials:
    return issue()


@contextlib.contextmanager
def open_listeners(count: int, *, tls: bool = False) -> Iterator[list[Listener]]:
    made = [
        Listener.open("127.0.0.1", 0, member(rank) if tls else None)
        for rank in range(count)
    ]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def config(rank: int, listeners: list[Listener], **changes: object) -> MeshConfig:
    fields: dict[str, object] = {
        "rank": rank,
        "size": len(listeners),
        "group": GROUP,
        "endpoints": tuple(
            Endpoint((("127.0.0.1", listener.port),)) for listener in listeners
        ),
        "share_memory": False,
    }
    return MeshConfig(**{**fields, **changes})  # type: ignore[arg-type]


def join(
    rank: int, listeners: list[Listener], limit_s: float = FORM_S, **changes: object
) -> Mesh:
    deadline = Deadline.after(limit_s)
    return meshes.connect(config(rank, listeners, **changes), listeners[rank], deadline)


def form_all(listeners: list[Listener], **changes: object) -> list[Mesh]:
    bodies = [partial(_join, r, listeners, changes) for r in range(len(listeners))]
    return run_threads(bodies)


def _join(rank: int, listeners: list[Listener], changes: dict[str, object]) -> Mesh:
    return join(rank, listeners, FORM_S, **changes)


def assert_connected(mesh_list: list[Mesh]) -> None:
    """Every pair exchanges a word over its bulk link; then all hang up."""
    for a, mesh in enumerate(mesh_list):
        assert mesh.control.keys() == mesh.bulk.keys() == {*range(len(mesh_list))} - {a}
        for b, link in mesh.bulk.items():
            send(link, f"{a} to {b}".encode())
            assert receive(mesh_list[b].bulk[a], 6) == f"{a} to {b}".encode()
    for mesh in mesh_list:
        mesh.close()


def connect_to(listener: Listener) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", listener.port), 60.0)
    sock.settimeout(60.0)
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


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_group_forms_in_spite_of_strangers(stranger: str, tls: bool) -> None:
    with open_listeners(2, tls=tls) as listeners:
        sockets = [connect_to(listener) for listener in listeners for _ in range(3)]
        for sock in sockets:
            STRANGERS[stranger](sock)
        assert_connected(form_all(listeners))
        for sock in sockets:
            sock.close()


def test_a_group_shares_memory_in_spite_of_strangers_at_the_unix_socket() -> None:
    with open_listeners(2) as listeners:
        sockets = []
        for listener in listeners:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(unix_socket_path(listener.unix_name))
            sock.sendall(b"is this the X server?".ljust(192))
            sockets.append(sock)
        made = form_all(listeners, share_memory=True)
        assert [link.kind for mesh in made for link in mesh.bulk.values()] == [
            "shm"
        ] * 2
        assert_connected(made)
        assert "this host: hello" in listeners[0].rejected[0]
        for sock in sockets:
            sock.close()


def test_the_silent_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 0.1)
    with open_listeners(1) as listeners, connect_to(listeners[0]) as sock:
        errors: list[str] = []

        def is_told() -> bool:
            with pytest.raises(DeadlineExceeded) as caught:
                listeners[0].take(lambda _: True, Deadline.after(0.3), "rank 1")
            errors.append(str(caught.value))
            return "never said hello" in errors[-1]

        deadline = Deadline.after(60.0)
        while not is_told():
            assert not deadline.is_over(), errors
        assert sock.recv(1) == b""
        assert "never said hello" in listeners[0].rejected[-1]


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.usefixtures("patient")
def test_a_crowd_of_silent_strangers_of_our_own_address_gives_way(tls: bool) -> None:
    """All of them came first, and none has run out of its time."""
    with open_listeners(2, tls=tls) as listeners:
        sockets = [connect_to(listeners[0]) for _ in range(100)]
        assert_connected(form_all(listeners))
        assert num_pending(listeners[0]) <= unauthenticated_limits.MAX_PER_ADDRESS
        for sock in sockets:
            sock.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is refused because time is over, which would make room."""
    monkeypatch.setattr(listener_module, "HANDSHAKE_S", 600.0)


def num_pending(listener: Listener) -> int:
    return len(listener._pending)


def pump(listener: Listener) -> None:
    """Poll the listener for a moment, as a caller of ``take`` does."""
    with contextlib.suppress(DeadlineExceeded):
        listener.take(lambda _: False, Deadline.after(0.05), "nobody")


def pump_until(listener: Listener, is_true: Callable[[], bool]) -> None:
    deadline = Deadline.after(60.0)
    while not is_true():
        assert not deadline.is_over()
        pump(listener)


def knock_from(host: str, listener: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), 60.0, (host, 0))


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.usefixtures("patient")
def test_half_open_connections_are_few_and_each_address_has_its_share(
    tls: bool,
) -> None:
    with open_listeners(1, tls=tls) as listeners, contextlib.ExitStack() as stack:
        for i in range(2, 22):  # twenty addresses with ten connections each
            for _ in range(10):
                sock = knock_from(f"127.0.0.{i}", listeners[0])
                stack.enter_context(sock)
            pump(listeners[0])
            assert num_pending(listeners[0]) <= unauthenticated_limits.MAX_PENDING

        def is_fair() -> bool:
            """Each address has its share: none was pushed out by others."""
            counts = Counter(stranger.host for stranger in listeners[0]._pending)
            shares = counts.values()
            return len(counts) == 20 and max(shares) - min(shares) <= 1

        pump_until(listeners[0], is_fair)
        pump(listeners[0])
        assert is_fair()
        assert len(listeners[0].rejected) <= listener_module.MAX_REJECTIONS


@pytest.mark.usefixtures("patient")
def test_who_knows_the_secret_stays_before_those_who_are_silent() -> None:
    """The member came first, so it is the oldest of its address."""
    with open_listeners(1, tls=True) as listeners, contextlib.ExitStack() as stack:
        honest = SecureSocket(connect_to(listeners[0]), member(1), 0)
        stack.enter_context(honest)
        honest.shake()
        pump(listeners[0])
        time.sleep(unauthenticated_limits.MIN_PENDING_S)
        for _ in range(2 * unauthenticated_limits.MAX_PER_ADDRESS):
            stack.enter_context(connect_to(listeners[0]))
            pump(listeners[0])
        while honest.shake():
            pump(listeners[0])
        honest.send(whole_hello)
        pump_until(listeners[0], lambda: listeners[0].num_parked() == 1)


class Flood:
    """A process that opens connections as fast as it can."""

    def __init__(self, port: int, data: bytes) -> None:
        self.port, self.data = port, data
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flood", daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(OSError), socket.socket() as sock:
                sock.settimeout(0.5)
                sock.connect(("127.0.0.1", self.port))
                sock.sendall(self.data)
                self.count += 1

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60.0)


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize(
    "data", [b"", bytes(range(256)), b"\x16\3\1\2\0\1\0\1\xfc\3\3" + bytes(600)]
)
def test_a_flood_of_garbage_does_not_keep_a_group_from_forming(
    data: bytes, tls: bool
) -> None:
    with open_listeners(2, tls=tls) as listeners:
        with Flood(listeners[0].port, data) as flood:
            deadline = Deadline.after(90.0)
            while flood.count < 300 and not deadline.is_over():
                pump(listeners[0])
            assert_connected(form_all(listeners))
        assert flood.count >= 300


def test_without_a_free_descriptor_strangers_wait_outside() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_listeners(1) as listeners, connect_to(listeners[0]):
        free = os.dup(0)  # the lowest number; there may be gaps below the highest
        os.close(free)
        with contextlib.ExitStack() as stack:
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            pump_until(listeners[0], lambda: bool(listeners[0].rejected))
        assert "Too many open files" in listeners[0].rejected[0]
        assert len(listeners[0].rejected) < 50 / 10 + 2, (
            "the listener was tried without a rest"
        )
        pump_until(listeners[0], lambda: num_pending(listeners[0]) == 1)


@pytest.mark.usefixtures("patient")
def test_a_slow_handshake_holds_nobody_up() -> None:
    """Hellos that come byte by byte, from as many strangers as may be there."""
    with open_listeners(2, tls=True) as listeners, contextlib.ExitStack() as stack:
        sockets = [
            connect_to(listeners[0])
            for _ in range(unauthenticated_limits.MAX_PER_ADDRESS)
        ]
        left, right = socket.socketpair()
        with SecureSocket(left, member(1), 0) as client, right:
            client.shake()
            hello = right.recv(4096)
        is_over = threading.Event()

        def drip() -> None:
            for byte in hello:
                for sock in sockets:
                    with contextlib.suppress(OSError):
                        sock.send(bytes([byte]))
                if is_over.wait(0.01):
                    return

        thread = threading.Thread(target=drip, name="slowloris", daemon=True)
        thread.start()
        stack.callback(thread.join, 60.0)
        stack.callback(is_over.set)
        assert_connected(form_all(listeners))
        for sock in sockets:
            sock.close()


# -- on the Unix socket ------------------------------------------------------------


def test_another_user_of_the_host_is_refused_at_the_unix_socket() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
os.setgid(65534), os.setuid(65534)
sock.connect(b"\\0" + sys.argv[1].encode())
sock.settimeout(60)
sys.exit(sock.recv(1) != b"")
"""
    with open_listeners(1) as listeners:
        name = listeners[0].unix_name.decode().removeprefix("@")
        with subprocess.Popen([sys.executable, "-c", code, name]) as other:
            deadline = Deadline.after(120.0)
            while not listeners[0].rejected and not deadline.is_over():
                pump(listeners[0])
            assert other.wait(60.0) == 0
        assert "another user of this host" in listeners[0].rejected[0]
        assert not listeners[0]._pending


@pytest.mark.parametrize("purpose", [wire.Purpose.CONTROL, wire.Purpose.BULK])
def test_the_unix_socket_is_no_way_around_tls(purpose: wire.Purpose) -> None:
    fields = {f: getattr(HELLO, f) for f in HELLO.__slots__}
    hello = wire.Hello(**{**fields, "purpose": purpose})
    with (
        open_listeners(1, tls=True) as listeners,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        sock.connect(unix_socket_path(listeners[0].unix_name))
        sock.sendall(wire.encode_hello(hello))
        pump_until(listeners[0], lambda: bool(listeners[0].rejected))
        assert listeners[0].num_parked() == 0
        assert "is not accepted on this socket" in listeners[0].rejected[0]


# -- TLS ---------------------------------------------------------------------------


def test_neighbours_share_memory_and_their_mail_is_encrypted() -> None:
    with open_listeners(2, tls=True) as listeners:
        made = form_all(listeners, share_memory=True)
        kinds = [link.kind for mesh in made for link in mesh.bulk.values()]
        assert kinds == ["shm", "shm"]
        for rank, mesh in enumerate(made):
            (mail,) = mesh.control.values()
            assert isinstance(mail, SecureSocket)
            assert mail.node == member(1 - rank).node
        assert_connected(made)


def test_all_connections_between_hosts_are_encrypted() -> None:
    with open_listeners(3, tls=True) as listeners:
        made = form_all(listeners, num_stripes=2)
        for mesh in made:
            assert {link.kind for link in mesh.bulk.values()} == {"tls x 2"}
            assert all(isinstance(sock, SecureSocket) for sock in mesh.control.values())
        assert_connected(made)


def listen_until_refused(sock: SecureSocket, listener: Listener) -> None:
    deadline = Deadline.after(60.0)
    while not deadline.is_over():
        with contextlib.suppress(BlockingIOError):
            if not sock.shake():
                sock.recv(1)
        pump(listener)


@pytest.mark.parametrize("kind", ["other cluster", "no certificate", "tls 1.2"])
def test_strangers_who_speak_tls_get_nowhere_and_the_group_forms(kind: str) -> None:
    trust = issue(cluster=1 if kind == "other cluster" else 0)
    with open_listeners(2, tls=True) as listeners:
        if kind == "tls 1.2":
            trust.client.minimum_version = ssl.TLSVersion.TLSv1_2
            trust.client.maximum_version = ssl.TLSVersion.TLSv1_2
        if kind == "no certificate":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["ringleader/1"])
            object.__setattr__(trust, "client", context)
        with SecureSocket(connect_to(listeners[0]), trust, "door") as sock:
            sock.shake()
            assert_connected(form_all(listeners))
            with pytest.raises(PeerUntrusted):
                listen_until_refused(sock, listeners[0])
        assert listeners[0].rejected


def outcomes(*bodies: Callable[[], Mesh]) -> list[Mesh | PeerError]:
    """Run all at once: the mesh of each, or why there is none."""

    def attempt(body: Callable[[], Mesh]) -> Mesh | PeerError:
        try:
            return body()
        except PeerError as exc:
            return exc

    return run_threads([partial(attempt, body) for body in bodies])


def endpoints(listeners: list[Listener], *nodes: Credentials) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint((("127.0.0.1", listener.port),), node.node)
        for listener, node in zip(listeners, nodes, strict=True)
    )


def test_the_expected_nodes_find_each_other() -> None:
    with open_listeners(2, tls=True) as listeners:
        assert_connected(
            form_all(listeners, endpoints=endpoints(listeners, member(0), member(1)))
        )


def test_who_does_not_speak_as_expected_is_told_why() -> None:
    """All cases at the same time, because one rank of each waits for its deadline."""
    run_threads([answer_as_another, come_without_tls, come_with_tls, just_hang_up])


def answer_as_another() -> None:
    with open_listeners(2, tls=True) as listeners:
        expected = endpoints(listeners, issue(), member(1))
        waited, refused = outcomes(
            lambda: join(0, listeners, limit_s=5.0),
            lambda: join(1, listeners, endpoints=expected),
        )
        assert isinstance(refused, PeerUntrusted)
        assert refused.peer == 0
        assert "unexpected node" in str(refused)
        assert isinstance(waited, PeerUnreachable)


def test_a_member_that_comes_as_another_is_refused_and_the_true_one_is_not() -> None:
    with open_listeners(2, tls=True) as listeners:
        impostor = Listener.open("127.0.0.1", 0, issue())
        expected = endpoints(listeners, member(0), member(1))
        is_refused = threading.Event()

        def pretend() -> Mesh:
            try:
                return join(1, [listeners[0], impostor])
            finally:
                is_refused.set()

        def come() -> Mesh:
            is_refused.wait(FORM_S)
            return join(1, listeners, endpoints=expected)

        made = outcomes(lambda: join(0, listeners, endpoints=expected), pretend, come)
        impostor.close()
        assert isinstance(made[1], PeerRefused)
        assert isinstance(made[0], Mesh)
        assert isinstance(made[2], Mesh)
        assert_connected([made[0], made[2]])


def come_without_tls() -> None:
    with open_listeners(1, tls=True) as listeners, open_listeners(1) as plain:
        _, refused = outcomes(
            lambda: join(0, [listeners[0], plain[0]], limit_s=5.0),
            lambda: join(1, [listeners[0], plain[0]]),
        )
        assert isinstance(refused, PeerRefused)
        assert refused.peer == 0
        assert "it speaks TLS and we do not" in str(refused)
        assert "does not speak TLS" in listeners[0].rejected[0]


def come_with_tls() -> None:
    with open_listeners(1) as plain, open_listeners(1, tls=True) as listeners:
        _, refused = outcomes(
            lambda: join(0, [plain[0], listeners[0]], limit_s=5.0),
            lambda: join(1, [plain[0], listeners[0]]),
        )
        assert isinstance(refused, PeerUntrusted)
        assert refused.peer == 0
        assert "does not speak TLS and we do" in str(refused)
        assert "speaks TLS, and we do not" in plain[0].rejected[0]


def test_another_version_is_told_so_and_the_group_forms() -> None:
    newer = whole_hello[:8] + b"\2\0" + whole_hello[10:] + b"a longer hello"
    with open_listeners(2) as listeners, connect_to(listeners[0]) as sock:
        sock.sendall(newer[:192])
        assert_connected(form_all(listeners))
        data = sock.recv(wire.REPLY_BYTES, socket.MSG_WAITALL)
        answer = wire.decode_reply(data, 0)
        assert answer.status is wire.Status.BAD_VERSION
        assert sock.recv(1) == b"", "who speaks another version is shown out"
        assert "another version" in listeners[0].rejected[0]


@contextlib.contextmanager
def impostor(say: bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield (port, calls) of a foreign server that sends ``say`` and hangs up."""
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
                sock.settimeout(60.0)
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
        thread.join(60.0)


def dial_impostor(port: int, listeners: list[Listener], limit_s: float) -> Mesh:
    endpoints = tuple(Endpoint((("127.0.0.1", p),)) for p in (port, listeners[0].port))
    settings = config(1, listeners, size=2, endpoints=endpoints)
    return meshes.connect(settings, listeners[0], Deadline.after(limit_s))


ok = wire.HelloReply(
    status=wire.Status.OK, rank=0, incarnation=bytes(16), host=bytes(16), unix_name=b""
)
ok_bytes = wire.encode_reply(ok)


@pytest.mark.parametrize(
    ("say", "error", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n".ljust(128), ProtocolError, "not a Ringleader peer"),
        (
            ok_bytes[:8] + b"\2\0" + ok_bytes[10:],
            ProtocolError,
            "version 2, not 1",
        ),
        (ok_bytes[:-4] + bytes(4), ProtocolError, "checksum"),
        (
            wire.encode_reply(
                wire.HelloReply(
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
            wire.encode_reply(
                wire.HelloReply(
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
        open_listeners(1) as listeners,
        impostor(say) as (port, calls),
        pytest.raises(error, match=text) as caught,
    ):
        dial_impostor(port, listeners, FORM_S)
    assert caught.value.peer == 0
    assert len(calls) == 1


def just_hang_up() -> None:
    """A server that does is dialled again, but not hammered."""
    with (
        open_listeners(1) as listeners,
        impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, calls),
        pytest.raises(PeerUnreachable, match="closed the connection") as caught,
    ):
        dial_impostor(port, listeners, 8.0)
    assert caught.value.peer == 0
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert 2 <= len(calls) <= 160
