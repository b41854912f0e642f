"""Who may call: the ranks of the group, over its encrypted links, and nobody else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch._C._distributed_c10d import HashStore, Store

from ringleader import rpc
from ringleader.deadline import Deadline
from ringleader.errors import PeerRefused, RingleaderError
from ringleader.groups import formation, store_rendezvous
from ringleader.groups.group import Group
from ringleader.groups.handle import view_hash
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.rpc import messages
from ringleader.rpc.channel import Channel
from ringleader.rpc.messages import Call, Failure, Value
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import mesh as meshes
from ringleader.transport.dialer import Endpoint as Address
from ringleader.transport.link import wait_ready
from ringleader.transport.listener import Listener
from ringleader.transport.memory_link import socket_pair
from ringleader.transport.mesh_config import MeshConfig
from ringleader.transport.secure_socket import SecureSocket
from ringleader.transport.socket_link import SocketLink
from ringleader.wire import hello as wire

WITHIN_S = 90.0
called: list[object] = []


@rpc.register(name="test_rpc_access.call")
def call(value: object) -> object:
    called.append(value)
    return value


def node_of(cluster: int = 0) -> Credentials:
    secret = ClusterSecret(root=Secret(bytes([cluster]) * 32))
    return Credentials.issue(secret, NodeKey.ephemeral())


def join(store: Store, rank: int, credentials: Credentials) -> Group:
    options = formation.Options(
        deadline=Deadline.after(WITHIN_S), transport="tcp", credentials=credentials
    )
    return formation.over_store(store, rank, 2, "view", options)


def attempt(
    credentials: Credentials | None, target: Address, name: str, limit_s: float = 0.4
) -> str:
    """Act as rank 1 of the group's RPC towards rank 0; return how that ends."""
    listener = Listener.open("127.0.0.1", 0, credentials, shares_memory=False)
    own = Address((("127.0.0.1", listener.port),))
    config = MeshConfig(
        rank=1,
        size=2,
        group=view_hash(name),
        endpoints=(target, own),
        namespace=bytes(16) if credentials is None else credentials.namespace,
        share_memory=False,
    )
    try:
        meshes.connect(config, listener, Deadline.after(limit_s)).close()
    except RingleaderError as exc:
        return f"{type(exc).__name__}: {exc}"
    finally:
        listener.close()
    return "connected"


def knock(target: Address, name: str) -> bytes:
    """Send a hello and a call without TLS; return what comes back."""
    hello = wire.Hello(
        purpose=wire.Purpose.CONTROL,
        group=view_hash(name) ^ target.channel,
        from_rank=1,
        to_rank=0,
        size=2,
        incarnation=bytes(16),
        host=bytes(16),
    )
    value = Value(messages.NIL)
    data = messages.encode(Call(1, "test_rpc_access.call", 1.0, value))
    answer = b""
    with (
        socket.create_connection(target.addresses[0], timeout=2.0) as sock,
        contextlib.suppress(OSError),
    ):
        sock.sendall(wire.encode_hello(hello) + data)
        while part := sock.recv(4096):
            answer += part
    return answer


def refuse_outsiders(target: Address, name: str) -> None:
    """Check that nobody gets a connection to rank 0."""
    for outsider in (node_of(), node_of(cluster=1), None):
        assert attempt(outsider, target, name) != "connected"
    assert wire.REPLY_MAGIC not in knock(target, name)


def test_only_members_of_the_group_can_call() -> None:
    """FT-12: not strangers, not another cluster, not other members of the cluster.

    They know all addresses and the number of the group, and try while rank 0 waits for
    rank 1, the only time at which it takes connections, and again afterwards.
    """
    store, members = HashStore(), [node_of(), node_of()]
    groups = run_threads([partial(join, store, r, m) for r, m in enumerate(members)])
    view = groups[0].view_id
    target = store_rendezvous.read(store.get(f"ringleader/{view}/0"), 0)
    with ThreadPoolExecutor(1) as threads:
        try:
            starting = threads.submit(rpc.start, groups[0], timeout=WITHIN_S)
            refuse_outsiders(target, f"{view}/rpc")
            told = attempt(node_of(), target, f"{view}/rpc", WITHIN_S)
            assert "PeerRefused: rank 0: refused us: another rank listens" in told
            assert not starting.done()
            second = rpc.start(groups[1], timeout=WITHIN_S)
            first = starting.result(WITHIN_S)
            socks = first._exchange._mesh.control.values()
            assert all(isinstance(sock, SecureSocket) for sock in socks)
            tensor = torch.randn(200_003)
            assert torch.equal(second.rpc_sync(0, call, (tensor,)), tensor)
            refuse_outsiders(target, f"{view}/rpc")
            with pytest.raises(PeerRefused, match="no function is registered"):
                second.rpc_sync(0, "os.system", ("true",))
            assert len(called) == 1, "nobody else has run anything"
        finally:
            rpc.shutdown(graceful=False)
            for group in groups:
                group.close()


class Trickle(SocketLink):
    """A link on which more arrives whenever something was read."""

    def __init__(self, sock: SecureSocket, more: list[Callable[[], object]]) -> None:
        super().__init__(sock, 0, "tls")
        self._more = more

    def try_recv_into(self, view: memoryview) -> int:
        size = super().try_recv_into(view)
        if size and self._more:
            self._more.pop(0)()
        return size


def test_decrypted_bytes_are_read_before_the_thread_sleeps() -> None:
    """TLS decrypts more than one message at a time, and polling does not tell."""
    left, right = socket_pair()
    sender = SecureSocket(left, node_of(), 1)
    receiver = SecureSocket(right, node_of(), 0, is_server=True)
    deadline = Deadline.after(WITHIN_S)
    while sender.shake() | receiver.shake():
        assert not deadline.is_over()
    data = messages.encode(Failure(1, "x" * 50_000)) + messages.encode(Failure(2, "y"))
    link = Trickle(receiver, [lambda: sender.send(data[5000:])])
    channel = Channel(0, link, 1 << 20)
    sender.send(data[:5000])
    found = []
    while (wanted := channel.arm()) is None or wait_ready(wanted, 0.0):
        found += [each.message.id for each in channel.read()]  # type: ignore[union-attr]
    assert found == [1, 2]
    channel.close()
    sender.close()
