"""Workers at a real coordinator, over gRPC on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509 import ObjectIdentifier
from cryptography.x509.oid import ExtendedKeyUsageOID

from ringleader.coordinator.client import session as session_module
from ringleader.coordinator.client.channel import CoordinatorChannel, JobNamespace
from ringleader.coordinator.client.session import CoordinatorSession, WorkerInfo
from ringleader.coordinator.grpc_tls import TlsSource
from ringleader.coordinator.server.listen_address import ListenAddress
from ringleader.coordinator.server.registry_runner import RegistryRunner
from ringleader.coordinator.server.server import CoordinatorServer, ServerOptions
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.deadline import Deadline
from ringleader.errors import (
    ConfigError,
    PeerError,
    PeerRefused,
    PeerUnreachable,
    PeerUntrusted,
    RingleaderError,
)
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.certificates.rotation import RotatingPem
from ringleader.identity.cluster_secret import ROOT_BYTES, ClusterSecret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.identity.secret_value import Secret
from ringleader.transport.free_ports import free_ports
from tests.kit.certificates import BOTH_USES, DAY, TestCa, new_key, pem_of
from tests.kit.undecodable_call import UNIMPLEMENTED, send_undecodable_call

LAB = TestCa()
RED, BLUE = Secret(b"r" * 32), Secret(b"b" * 32)
WAIT_S = 60.0
LONG_S, SHORT_S = 600.0, 6.0
"""Heartbeat time-outs: nobody is evicted; the next heartbeat comes soon."""


@pytest.fixture(autouse=True)
def patient_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call takes too long on a busy machine."""
    monkeypatch.setattr(session_module, "_CALL_S", WAIT_S)
    monkeypatch.setattr(session_module, "_UNREGISTER_S", WAIT_S)


@asynccontextmanager
async def coordinator(
    *,
    port: int = 0,
    timeout_s: float = LONG_S,
    state: Path | None = None,
    tls: TlsSource | None = None,
) -> AsyncIterator[CoordinatorServer]:
    listen = ListenAddress("127.0.0.1", port)
    options = ServerOptions(
        listen=listen, heartbeat_timeout_s=timeout_s, state=state, tls=tls
    )
    server = CoordinatorServer(options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def session(
    port: int,
    worker_id: str,
    key: Secret[bytes] = RED,
    tls: TlsSource | None = None,
) -> CoordinatorSession:
    worker = WorkerInfo(
        namespace=JobNamespace(key), worker_id=worker_id, addresses=("10.0.0.1:1",)
    )
    return CoordinatorSession(f"127.0.0.1:{port}", worker, tls=tls)


async def begin(each: CoordinatorSession) -> int:
    return await each.start(Deadline.after(WAIT_S))


async def until(is_so: Callable[[], bool]) -> None:
    deadline = Deadline.after(WAIT_S)
    while not is_so():
        assert not deadline.is_over()
        await asyncio.sleep(0.01)


def names(of: CoordinatorSession) -> dict[int, str]:
    return {rank: peer.worker_id for rank, peer in of.peers.items()}


def test_every_worker_learns_of_all_others_by_rank() -> None:
    """ZF-8: the first worker knows those that came later, also after departures."""

    async def scenario() -> None:
        async with coordinator() as server:
            workers = [session(server.port, name) for name in "abc"]
            assert [await begin(each) for each in workers] == [0, 1, 2]
            everybody = {0: "a", 1: "b", 2: "c"}
            await until(lambda: all(names(each) == everybody for each in workers))
            await workers[1].close()
            others = {0: "a", 2: "c"}
            await until(lambda: names(workers[0]) == names(workers[2]) == others)
            late = session(server.port, "d")
            assert await begin(late) == 1
            await until(lambda: names(workers[0]) == {0: "a", 1: "d", 2: "c"})
            await late.update_addresses(("10.0.0.9:9",))
            await until(lambda: workers[0].peers[1].addresses == ("10.0.0.9:9",))
            for each in (workers[0], workers[2], late):
                await each.close()
            await late.close()  # twice

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "member"])
def test_a_call_that_no_text_names_disturbs_nobody(is_plain: bool) -> None:
    """The worker watches its peers over the connection that it had before."""
    tls = None if is_plain else _cluster(b"1")

    async def scenario() -> None:
        async with coordinator(tls=tls) as server:
            first = session(server.port, "a", tls=tls)
            await begin(first)
            pem = tls and tls()
            for _ in range(3):
                answer = await asyncio.to_thread(
                    send_undecodable_call, server.port, pem
                )
                assert UNIMPLEMENTED in answer
            second = session(server.port, "b", tls=tls)
            await begin(second)
            await until(lambda: names(first) == {0: "a", 1: "b"})
            assert not first.trouble
            await first.close()
            await second.close()

    asyncio.run(scenario())


def test_a_restart_of_the_coordinator_loses_nobody(tmp_path: Path) -> None:
    """ZF-7: heartbeats are sent; without its state the coordinator learns everybody
    again, with it everybody keeps the rank."""

    async def scenario() -> None:
        (port,) = free_ports(1)  # which no other program takes meanwhile
        state = tmp_path / "state"
        async with coordinator(port=port, timeout_s=SHORT_S, state=state):
            red = [session(port, name) for name in "ab"]
            blue = session(port, "a", BLUE)
            assert [await begin(each) for each in (*red, blue)] == [0, 1, 0]
            await red[0].close()
            red[0] = session(port, "c")
            assert await begin(red[0]) == 0
        await until(lambda: all(each.trouble for each in (*red, blue)))
        assert f"coordinator 127.0.0.1:{port}" in str(red[1].trouble)
        async with coordinator(port=port, timeout_s=SHORT_S, state=state) as second:
            assert second.num_restored == 3
            await until(lambda: not any(each.trouble for each in (*red, blue)))
        await until(lambda: bool(red[0].trouble))
        async with coordinator(port=port, timeout_s=SHORT_S):  # the state is lost
            # Whoever registers first gets rank 0 now; both know both. A session whose
            # watch returns before it has registered again knows nobody for a moment.
            await until(
                lambda: (
                    sorted(names(red[0]).values()) == ["b", "c"]
                    and names(red[0]) == names(red[1])
                    and names(blue) == {0: "a"}
                    and not blue.trouble
                )
            )
            assert sorted(names(red[0])) == [0, 1]
            for each in (*red, blue):
                await each.close()

    asyncio.run(scenario())


def test_a_worker_that_was_replaced_stops_and_says_so() -> None:
    async def scenario() -> None:
        async with coordinator(timeout_s=SHORT_S) as server:
            old, new = session(server.port, "a"), session(server.port, "a")
            assert await begin(old) == 0
            assert await begin(new) == 0
            await until(lambda: "another process registered as a" in str(old.trouble))
            await old.close()  # must not remove its successor
            other = session(server.port, "b")
            assert await begin(other) == 1, "rank 0 is not free"
            await until(lambda: names(new) == {0: "a", 1: "b"} and not new.trouble)
            await new.close()
            await other.close()

    asyncio.run(scenario())


def test_errors_have_codes_and_sentences() -> None:
    """ZF-16: a failed start leaves no worker behind."""

    async def refusal(channel: CoordinatorChannel, name: str, request: object) -> str:
        if isinstance(request, pb.HeartbeatRequest):
            answer = channel.beat(request, WAIT_S)
        else:
            answer = channel.call(name, request, WAIT_S)
        with pytest.raises(RingleaderError) as caught:
            await answer
        return f"{type(caught.value).__name__}: {caught.value}"

    async def scenario() -> None:
        red = pb.Namespace(key=RED.reveal())
        async with coordinator() as server:
            channel = CoordinatorChannel(f"127.0.0.1:{server.port}", None)
            where = f"coordinator 127.0.0.1:{server.port}"
            request = pb.RegisterWorkerRequest(namespace=red, worker_id="a b")
            text = await refusal(channel, "RegisterWorker", request)
            assert text.startswith(f"ConfigError: {where}: RegisterWorker: worker_id")
            beat = pb.HeartbeatRequest(namespace=pb.Namespace(key=b"short"))
            assert "namespace.key has 5 bytes" in await refusal(
                channel, "Heartbeat", beat
            )
            end = pb.EndCheckpointRequest(namespace=red, worker_id="a", step=1)
            text = await refusal(channel, "EndCheckpoint", end)
            assert text.startswith(f"{PeerRefused.__name__}: {where}: EndCheckpoint")
            large = pb.HeartbeatRequest(namespace=red, worker_id="x" * 100_000)
            assert "larger than max" in await refusal(channel, "Heartbeat", large)
            await channel.close()
        (port,) = free_ports(1)
        lonely = session(port, "a")
        with pytest.raises(PeerUnreachable, match=f"coordinator 127.0.0.1:{port}"):
            await lonely.start(Deadline.after(1.0))
        assert lonely.rank == -1

    asyncio.run(scenario())


def test_checkpoints_over_grpc() -> None:
    """ZF-18: started by one, seen by all, complete when all are done."""

    async def scenario() -> None:
        async with coordinator() as server:
            a, b = session(server.port, "a"), session(server.port, "b")
            await begin(a)
            await begin(b)
            begun = await a.start_checkpoint(100, "/nas/run/100")
            assert [p.worker_id for p in begun.participants] == ["a", "b"]
            assert await b.start_checkpoint(100, "/nas/run/100") == begun
            await a.end_checkpoint(100)
            [seen] = await b.checkpoints()
            assert [p.is_done for p in seen.participants] == [True, False]
            assert not seen.is_complete
            ended = await b.end_checkpoint(100)
            assert ended.is_complete
            assert ended.completed_at_s >= ended.started_at_s > 1.7e9
            await a.close()
            [seen] = await b.checkpoints()
            assert [p.is_registered for p in seen.participants] == [False, True]
            await b.close()

    asyncio.run(scenario())


def test_a_long_list_of_peers_comes_in_parts() -> None:
    """ZF-12: and a worker puts them together again."""

    async def scenario() -> None:
        async with coordinator() as server:
            channel = CoordinatorChannel(f"127.0.0.1:{server.port}", None)
            red = pb.Namespace(key=RED.reveal())
            longest = [f"{'h' * 250}.{n:02}:65535" for n in range(16)]
            for number in range(300):
                request = pb.RegisterWorkerRequest(
                    namespace=red,
                    worker_id=f"w{number}",
                    incarnation="1",
                    addresses=longest,
                )
                await channel.call("RegisterWorker", request, WAIT_S)
            worker = session(server.port, "last")
            assert await begin(worker) == 300
            await until(lambda: len(worker.peers) == 301)
            await worker.close()
            await channel.close()

    asyncio.run(scenario())


def _cluster(byte: bytes) -> TlsSource:
    cluster = ClusterSecret(root=Secret(byte * ROOT_BYTES))
    pem = Credentials.issue(cluster, NodeKey.ephemeral()).pem()
    return lambda: pem


async def _refused(each: CoordinatorSession) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "_FIRST_WAIT_S", WAIT_S)  # it tries once
        with pytest.raises(PeerError) as caught:
            await each.start(Deadline.after(WAIT_S))
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_cluster_uses_its_own_certificates() -> None:
    async def scenario() -> None:
        async with coordinator(tls=_cluster(b"1")) as server:
            member = session(server.port, "a", tls=_cluster(b"1"))
            assert await begin(member) == 0
            text = await _refused(session(server.port, "b", tls=_cluster(b"2")))
            assert text.startswith("PeerUntrusted")
            text = await _refused(session(server.port, "b"))
            assert "it uses TLS; leave out --plaintext" in text
            half = replace(_cluster(b"2")(), authority=_cluster(b"1")().authority)
            text = await _refused(session(server.port, "b", tls=lambda: half))
            assert "does not accept our certificate" in text
            await until(lambda: names(member) == {0: "a"})
            await member.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_new_certificates_are_used_and_old_ones_refused_without_a_restart(
    tmp_path: Path,
) -> None:
    """The user's files: a worker that is connected is disconnected, too."""
    old, new = TestCa("old"), TestCa("new")
    files = old.files(tmp_path / "server", "127.0.0.1")
    mine = RotatingPem.of(old.files(tmp_path / "a", "127.0.0.1"), print)
    other = RotatingPem.of(old.files(tmp_path / "b", "127.0.0.1"), print)

    async def scenario() -> None:
        source = RotatingPem.of(files, print).current
        async with coordinator(timeout_s=4.0, tls=source) as server:
            a = session(server.port, "a", tls=mine.current)
            b = session(server.port, "b", tls=other.current)
            assert [await begin(a), await begin(b)] == [0, 1]
            await until(lambda: len(a.peers) == len(b.peers) == 2)
            new.files(tmp_path / "server", "127.0.0.1")
            new.files(tmp_path / "a", "127.0.0.1")
            await until(lambda: "certificate" in str(b.trouble))
            await until(lambda: names(a) == {0: "a"} and not a.trouble)
            await a.close()
            await b.close()

    asyncio.run(scenario())


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    ca = TestCa()
    server_files = ca.files(tmp_path / "server", "elsewhere.example")
    mine = RotatingPem.of(ca.files(tmp_path / "a", "127.0.0.1"), print)

    async def scenario() -> None:
        source = RotatingPem.of(server_files, print).current
        async with coordinator(tls=source) as server:
            text = await _refused(session(server.port, "a", tls=mine.current))
            assert text.startswith("PeerUntrusted")
            assert "127.0.0.1" in text

    asyncio.run(scenario())


def _user(
    ca: TestCa = LAB,
    *,
    since: timedelta = DAY,
    until: timedelta = DAY,
    uses: Sequence[ObjectIdentifier] = BOTH_USES,
) -> TlsSource:
    """A certificate that was valid when its process started; LAB is trusted."""
    key = new_key()
    certificate = ca.issue(key, "127.0.0.1", since=since, until=until, uses=uses)
    pem = PemCredentials(LAB.pem, certificate, Secret(pem_of(key)))
    return lambda: pem


async def _reason(port: int, tls: TlsSource) -> str:
    channel = CoordinatorChannel(f"127.0.0.1:{port}", tls)
    request = pb.RegisterWorkerRequest(worker_id="a", incarnation="1")
    try:
        with pytest.raises(PeerUntrusted) as caught:
            await channel.call("RegisterWorker", request, WAIT_S)
    finally:
        await channel.close()
    return str(caught.value)


def test_refused_certificates_are_explained_although_grpc_does_not() -> None:
    """The worker says why, whichever side refuses."""
    expired, early = _user(until=-DAY / 2), _user(since=-DAY / 2)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH]
    ours = "does not accept our certificate: "

    async def scenario() -> None:
        async with coordinator(tls=_user()) as server:
            for mine, why in (
                (expired, ours + "certificate has expired"),
                (early, ours + "certificate is not yet valid"),
                (_user(TestCa()), ours + "unable to get local issuer"),
                (_user(uses=uses), ours + "unsuitable certificate purpose"),
            ):
                assert why in await _reason(server.port, mine)
        for theirs, why in (
            (expired, "its certificate has expired"),
            (early, "its certificate is not valid yet"),
            (_user(TestCa()), "its certificate is not from this cluster"),
        ):
            async with coordinator(tls=theirs) as server:
                assert why in await _reason(server.port, _user())

    asyncio.run(scenario())


def test_only_one_coordinator_per_port() -> None:
    async def scenario() -> None:
        async with coordinator() as server:
            with pytest.raises(ConfigError, match="another program listens there"):
                async with coordinator(port=server.port):
                    pass

    asyncio.run(scenario())


def test_a_server_whose_clock_has_ended_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(_: RegistryRunner) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RegistryRunner, "tick_forever", fail)

    async def scenario() -> None:
        async with coordinator() as server:
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(server.serve_until(asyncio.Event()), WAIT_S)

    asyncio.run(scenario())
