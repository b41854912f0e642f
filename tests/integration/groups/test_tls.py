"""Groups whose links are encrypted: real processes, real faults, real strangers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore, Store

import ringleader
from ringleader.deadline import Deadline
from ringleader.errors import (
    CallMismatch,
    ConfigError,
    DeadlineExceeded,
    PeerLost,
    PeerRefused,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.groups import (
    control_channel,
    formation,
    link_credentials,
    store_rendezvous,
)
from ringleader.groups.control_channel import ControlChannel
from ringleader.groups.control_stream import ControlStream
from ringleader.groups.group import Group, handle_of
from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.ids import NodeId
from ringleader.settings import LinkSettings
from ringleader.testing.processes import ForkServer, Rank, Ready, spawn_ranks
from ringleader.testing.threaded_world import run_threads
from ringleader.transport import memory_link
from ringleader.transport.free_ports import free_ports
from ringleader.transport.secure_socket import SecureSocket
from ringleader.wire.control_frames import Frame, Kind

LOST_WITHIN_S = 30.0
STOP_TIMEOUT_S = 10.0
SLACK_S = 30.0


def issue(cluster: int = 0) -> Credentials:
    """A new node of a cluster."""
    secret = ClusterSecret(root=Secret(bytes([cluster]) * 32))
    return Credentials.issue(secret, NodeKey.ephemeral())


@cache
def member(rank: int) -> Credentials:
    return issue()


# -- several processes of one node, as RINGLEADER_CREDENTIALS makes them -----------


@pytest.fixture(scope="module")
def spawn(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Spawn:
    """``spawn_ranks`` for ranks that have the credentials of one node."""
    path = tmp_path_factory.mktemp("node") / "credentials"
    issue().to_file(path)
    env = {"RINGLEADER_CREDENTIALS": str(path)}
    return partial(spawn_ranks, fork_server=fork_server, env=env)


Spawn = Callable[..., AbstractContextManager[list[Rank]]]


def compute(group: Group, _: Ready) -> tuple[dict[int, str], list[float]]:
    """Every algorithm, messages, and sub-groups of both kinds."""
    found = []
    for algorithm in ("exchange", "direct", "ring", "doubling", "tree", "star"):
        tensor = torch.full((300_000,), float(group.rank + 1))
        group.all_reduce(tensor, algorithm=algorithm)
        assert bool((tensor == tensor[0]).all())
        found.append(float(tensor[0]))
    other = torch.zeros(500_000)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.sendrecv(torch.full((500_000,), float(group.rank)), right, other, left)
    found.append(float(other[-1]))
    part = group.subgroup([0, 2])
    if part is not None:
        with part:
            tensor = torch.ones(1000)
            part.all_reduce(tensor)
            assert part.links() == {1 - part.rank: "tls"}
            found.append(float(tensor.sum()))
    group.barrier()
    return group.links(), found


def test_values_are_right_over_encrypted_links(spawn: Spawn) -> None:
    with spawn(3, compute) as ranks:
        results = [rank.result(within_s=120) for rank in ranks]
    for rank, (links, found) in enumerate(results):
        assert set(links.values()) == {"tls"}
        expected = [6.0] * 6 + [float((rank - 1) % 3)]
        assert found == expected + ([2000.0] if rank != 1 else [])


def reduce_much(group: Group, _: Ready) -> tuple[list[float], list[bool]]:
    """Tensors that a thread sends, by several algorithms; which links have one."""
    found = []
    for algorithm in ("ring", "direct", "tree", "doubling"):
        tensor = torch.arange(3_000_001, dtype=torch.float32) * (group.rank + 1)
        group.all_reduce(tensor, algorithm=algorithm)
        found.append(float(tensor[-1]))
        assert bool((tensor == 6 * torch.arange(3_000_001)).all())
    outputs = [torch.empty(2_000_000) for _ in range(group.size)]
    group.all_gather(outputs, torch.full((2_000_000,), float(group.rank)))
    found += [float(part.sum()) for part in outputs]
    links = handle_of(group).mesh.bulk.values()
    return found, [link.sends_behind for link in links]


@pytest.mark.parametrize("threads", ["0", "1"])
def test_values_are_right_with_and_without_a_thread_that_sends(
    fork_server: ForkServer, tmp_path: Path, threads: str
) -> None:
    path = tmp_path / "credentials"
    issue().to_file(path)
    env = {"RINGLEADER_CREDENTIALS": str(path), "RINGLEADER_HELPER_THREADS": threads}
    with spawn_ranks(3, reduce_much, fork_server=fork_server, env=env) as ranks:
        for rank in ranks:
            found, behind = rank.result(within_s=120)
            assert found == [18_000_000.0] * 4 + [0.0, 2_000_000.0, 4_000_000.0]
            assert behind == [threads == "1"] * 2


def describe(group: Group, _: Ready) -> tuple[dict[int, str], bool]:
    tensor = torch.ones(1000)
    group.all_reduce(tensor)
    mail = handle_of(group).mesh.control.values()
    return group.links(), all(isinstance(sock, SecureSocket) for sock in mail)


def test_ranks_of_one_host_share_memory_and_encrypt_their_mail(
    spawn: Spawn,
) -> None:
    with spawn(2, describe, transport="shm") as ranks:
        for rank, process in enumerate(ranks):
            assert process.result(within_s=120) == ({1 - rank: "shm"}, True)


def reduce_for_ever(group: Group, ready: Ready) -> None:
    tensor = torch.ones(400_000)
    group.all_reduce(tensor)
    ready()
    while True:
        group.all_reduce(tensor)


def test_a_killed_rank_is_named_by_every_survivor(spawn: Spawn) -> None:
    with spawn(3, reduce_for_ever) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=120)
        killed_s = ranks[1].kill()
        for rank in (ranks[0], ranks[2]):
            error = rank.error(within_s=120)
            assert isinstance(error, PeerLost)
            assert error.peer == 1, error
            assert rank.ended_at_s - killed_s < LOST_WITHIN_S


def reduce_much_for_ever(group: Group, ready: Ready) -> None:
    tensor = torch.ones(4_000_000)
    group.all_reduce(tensor)
    ready()
    while True:
        group.all_reduce(tensor, algorithm="ring")


def test_a_rank_that_is_killed_while_threads_send_is_named(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    path = tmp_path / "credentials"
    issue().to_file(path)
    env = {"RINGLEADER_CREDENTIALS": str(path), "RINGLEADER_HELPER_THREADS": "1"}
    with spawn_ranks(
        3, reduce_much_for_ever, fork_server=fork_server, env=env
    ) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=120)
        ranks[1].kill()
        for rank in (ranks[0], ranks[2]):
            error = rank.error(within_s=120)
            assert isinstance(error, PeerLost)
            assert error.peer == 1, error


@pytest.mark.slow
def test_a_stopped_rank_is_named_at_the_deadline(spawn: Spawn) -> None:
    """Without TLS, ``test_faults.py`` does that for every change."""
    with spawn(3, reduce_for_ever, timeout_s=STOP_TIMEOUT_S) as ranks:
        for rank in ranks:
            rank.wait_ready(within_s=120)
        stopped_s = ranks[1].stop()
        for rank in (ranks[0], ranks[2]):
            error = rank.error(within_s=120)
            assert isinstance(error, DeadlineExceeded)
            assert error.peer == 1, error
            assert rank.ended_at_s - stopped_s < STOP_TIMEOUT_S + SLACK_S


def differ(group: Group, _: Ready) -> None:
    group.all_reduce(torch.ones(1000 + group.rank // 2))


def test_ranks_that_call_different_things_print_both_calls(spawn: Spawn) -> None:
    with spawn(3, differ) as ranks:
        for rank in ranks:
            error = rank.error(within_s=120)
            assert isinstance(error, CallMismatch)
            assert "1000 x" in str(error)
            assert "1001 x" in str(error)


def many_threads(group: Group, _: Ready) -> float:
    """Collectives and messages from several threads: TLS has one user at a time."""
    total = torch.zeros(1)

    def talk(tag: int) -> None:
        stream = torch.empty(50_000)
        for turn in range(20):
            peer = 1 - group.rank
            sent = torch.full((50_000,), float(turn))
            group.sendrecv(sent, peer, stream, peer, tag=tag)
            assert bool((stream == turn).all())

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        tensor = torch.full((100_000,), float(turn))
        group.all_reduce(tensor, async_op=turn % 2 == 0).wait()
        total += tensor[-1]
    for thread in threads:
        thread.join()
    return float(total)


def test_threads_share_encrypted_links(spawn: Spawn) -> None:
    with spawn(2, many_threads) as ranks:
        for rank in ranks:
            assert rank.result(within_s=200) == 2.0 * sum(range(40))


# -- the file ----------------------------------------------------------------------


def form_pair() -> list[Group]:
    peers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    return run_threads(
        [partial(ringleader.group, peers, rank, transport="tcp") for rank in range(2)]
    )


def close(groups: Sequence[Group]) -> None:
    for group in groups:
        group.close()


@pytest.mark.parametrize("content", [None, b"", b"not credentials"])
def test_credentials_that_cannot_be_used_are_an_error_and_never_plain_links(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    monkeypatch.setenv("RINGLEADER_CREDENTIALS", str(path))
    with pytest.raises(ConfigError, match="credentials"):
        ringleader.group([f"127.0.0.1:{free_ports(1)[0]}"], 0)


def test_plain_links_can_be_had_in_spite_of_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGLEADER_CREDENTIALS", str(tmp_path / "missing"))
    monkeypatch.setenv("RINGLEADER_PLAINTEXT", "1")
    groups = form_pair()
    assert [list(group.links().values()) for group in groups] == [["tcp"], ["tcp"]]
    close(groups)


@pytest.mark.slow
def test_plain_groups_need_nothing_but_torch_and_numpy() -> None:
    code = """
import sys
for name in ("cryptography", "spake2", "zeroconf", "msgspec", "psutil"):
    sys.modules[name] = None
import ringleader.groups.formation, ringleader.backend.create
from ringleader.settings import LinkSettings
def links(path):
    return LinkSettings.from_environment({"RINGLEADER_CREDENTIALS": path})
assert ringleader.groups.link_credentials.load_credentials(links("")) is None
try:
    ringleader.groups.link_credentials.load_credentials(links("/credentials"))
except ringleader.ConfigError as exc:
    assert "is not installed" in str(exc), exc
else:
    raise SystemExit("plain by accident")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


# -- over a store: nodes that know each other --------------------------------------


Outcome = Group | RingleaderError


def options(
    credentials: Credentials | None, limit_s: float = 60.0
) -> formation.Options:
    return formation.Options(
        deadline=Deadline.after(limit_s),
        transport="tcp",
        addresses=("127.0.0.1",),
        credentials=credentials,
    )


def outcomes(*bodies: Callable[[], Group]) -> list[Outcome]:
    """Run all at once: the group of each, or why there is none."""

    def attempt(body: Callable[[], Group]) -> Outcome:
        try:
            return body()
        except RingleaderError as exc:
            return exc

    return run_threads([partial(attempt, body) for body in bodies])


def join(store: Store, rank: int, size: int, chosen: formation.Options) -> Group:
    return formation.over_store(store, rank, size, "view", chosen)


def test_nodes_meet_in_a_store_and_know_each_other() -> None:
    store = HashStore()
    made = outcomes(*(partial(join, store, r, 3, options(member(r))) for r in range(3)))
    groups = [each for each in made if isinstance(each, Group)]
    assert len(groups) == 3, made
    for rank, group in enumerate(groups):
        place = store_rendezvous.read(store.get(f"ringleader/view#1/{rank}"), rank)
        assert place.node == member(rank).node
        for peer, sock in handle_of(group).mesh.control.items():
            assert isinstance(sock, SecureSocket)
            assert sock.node == member(peer).node
    close(groups)


def test_all_addresses_of_a_rank_are_tried() -> None:
    """The first is silent, the second refuses us, at the third the rank is found."""
    store = HashStore()
    (nobody,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.2", 0), backlog=0) as silent,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for sock in (first, second):
            sock.setblocking(False)
            sock.connect_ex(silent.getsockname())
        port = silent.getsockname()[1]
        started_s = time.monotonic()

        def publish(
            where: Store,
            key: str,
            _: Sequence[str],
            own: int,
            node: NodeId | None,
            channel: int,
        ) -> None:
            text = f"127.0.0.2:{port},127.0.0.1:{nobody},127.0.0.1:{own}"
            where.set(key, f"{text} {channel:016x} {node}")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store_rendezvous, "publish", publish)
            made = outcomes(
                *(partial(join, store, r, 2, options(member(r))) for r in range(2))
            )
        assert time.monotonic() - started_s < 30.0
    groups = [each for each in made if isinstance(each, Group)]
    assert len(groups) == 2, made
    close(groups)


def test_two_clusters_do_not_mix() -> None:
    store = HashStore()
    made = outcomes(
        partial(join, store, 0, 2, options(member(0), 4.0)),
        partial(join, store, 1, 2, options(issue(cluster=1), 4.0)),
    )
    assert isinstance(made[1], PeerUntrusted), made
    assert made[1].peer == 0
    assert "another cluster" in str(made[1])
    assert isinstance(made[0], RingleaderError)


@pytest.mark.parametrize("plain", [0, 1])
def test_all_ranks_encrypt_or_none_does(plain: int) -> None:
    store = HashStore()
    made = outcomes(
        *(
            partial(join, store, r, 2, options(None if r == plain else member(r)))
            for r in range(2)
        )
    )
    without, encrypting = made[plain], made[1 - plain]
    assert isinstance(without, PeerRefused)
    assert "is RINGLEADER_CREDENTIALS set here?" in str(without)
    assert isinstance(encrypting, PeerUntrusted)
    assert "is RINGLEADER_CREDENTIALS set there?" in str(encrypting)


def test_sub_groups_expect_the_same_nodes() -> None:
    store = HashStore()
    made = outcomes(*(partial(join, store, r, 3, options(member(r))) for r in range(3)))
    groups = [each for each in made if isinstance(each, Group)]
    assert len(groups) == 3, made
    parts = run_threads([partial(groups[r].subgroup, [2, 1]) for r in (1, 2)])
    for rank, part in zip((1, 0), parts, strict=True):
        assert part is not None
        assert part.rank == rank
        assert part.links() == {1 - rank: "tls"}
        (sock,) = handle_of(part).mesh.control.values()
        assert isinstance(sock, SecureSocket)
        assert sock.node == member(2 - (1 - rank)).node
        part.close()
    close(groups)


# -- mail --------------------------------------------------------------------------


def secure_pair() -> tuple[SecureSocket, SecureSocket]:
    left, right = memory_link.socket_pair()
    ends = (
        SecureSocket(left, member(0), 1),
        SecureSocket(right, member(1), 0, is_server=True),
    )
    deadline = Deadline.after(60.0)
    while ends[0].shake() | ends[1].shake():
        assert not deadline.is_over()
    return ends


def test_the_notice_of_the_end_does_not_cut_a_frame_that_is_half_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that reads nothing: frames wait, one of them is already encrypted."""
    monkeypatch.setattr(control_channel, "FLUSH_S", 60.0)  # this thread may be slow
    left, right = secure_pair()
    control = ControlChannel.open(0, {1: left})
    stream = control._streams[1]
    number = 0
    while not stream.out:
        number += 1
        stream.queue(
            Frame(kind=Kind.DATA, message=number, length=30_000), bytes(30_000)
        )
        stream.write()
    assert left.owes
    for _ in range(3):
        stream.queue(
            Frame(kind=Kind.DATA, message=number, length=30_000), bytes(30_000)
        )
    thread = threading.Thread(
        target=control.say_broken, args=(PeerLost(1, "gone"),), name="end"
    )
    thread.start()
    reader = ControlStream(0, right)
    frames: list[Frame] = []
    deadline = Deadline.after(60.0)
    while not deadline.is_over() and Kind.BROKEN not in [f.kind for f in frames]:
        frames += [frame for frame, _ in reader.read(lambda _peer, _frame: None)]
    thread.join(60.0)
    assert [frame.kind for frame in frames[:-1]] == [Kind.DATA] * (len(frames) - 1)
    assert frames[-1].kind is Kind.BROKEN
    assert number <= len(frames) <= number + 1, "whoever had not begun is dropped"
    control.close()
    right.close()


def test_a_secret_is_in_no_error_and_no_repr(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    credentials = issue()
    credentials.to_file(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    links = LinkSettings.from_environment({"RINGLEADER_CREDENTIALS": str(path)})
    with pytest.raises(ConfigError) as caught:
        link_credentials.load_credentials(links)
    shown = repr(credentials) + repr(options(credentials)) + repr(caught.value.args)
    for start in range(0, len(raw) - 16, 16):
        assert repr(raw[start : start + 16])[2:-1] not in shown
    assert os.fspath(path) in str(caught.value)
