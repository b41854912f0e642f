"""The command ``ringleader coordinator``, as a process that is killed and restarted."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from ringleader.coordinator.client.channel import CoordinatorChannel, JobNamespace
from ringleader.coordinator.client.session import CoordinatorSession, WorkerInfo
from ringleader.coordinator.v1 import coordinator_pb2 as pb
from ringleader.deadline import Deadline
from ringleader.errors import PeerUntrusted, RingleaderError
from ringleader.identity.certificates.pem import PemCredentials
from ringleader.identity.secret_value import Secret
from ringleader.settings.tls_files import TlsFiles
from ringleader.transport.free_ports import free_ports
from tests.kit.certificates import TestCa, new_key, pem_of
from tests.kit.malformed_requests import call

RED, BLUE = JobNamespace(Secret(b"r" * 32)), JobNamespace(Secret(b"b" * 32))
SERVICE = "ringleader.coordinator.v1.Coordinator"
TIMEOUT_S = 5.0
"""After which a silent worker is evicted; no machine holds up a living one so long."""
WAIT_S = 60.0


class Command:
    """Runs the command in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.env = os.environ | {"RINGLEADER_HOME": str(home)}
        self.running: list[subprocess.Popen[str]] = []

    def start(self, listen: str, *options: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "ringleader.cli.main", "coordinator"]
        process = subprocess.Popen(
            [*argv, "--listen", listen, *options],
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.running.append(process)
        return process

    def serve(self, port: int, timeout_s: float = TIMEOUT_S) -> subprocess.Popen[str]:
        """Start it and wait until it listens."""
        process = self.start(f"127.0.0.1:{port}", "--heartbeat-timeout", str(timeout_s))
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"Coordinator on 127.0.0.1:{port} "), line
        return process


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path / "home")
    yield made
    for process in made.running:
        process.kill()
        process.communicate()


def test_a_call_whose_path_is_no_text_ends_no_coordinator(command: Command) -> None:
    """It would end gRPC's server (1.85.1); a worker registers afterwards."""
    (port,) = free_ports(1)
    process = command.serve(port)
    honest = call(f"/{SERVICE}/GetCheckpoints", b"")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as line:
            line.sendall(honest.replace(b"Get", b"G\xfft"))
            line.shutdown(socket.SHUT_WR)
            while line.recv(65536):  # until the server has answered all
                pass

    async def register() -> None:
        session = worker(port, "anna")
        assert await begin(session) == 0
        await session.close()

    asyncio.run(register())
    process.terminate()
    said, _ = process.communicate(timeout=WAIT_S)
    assert "Traceback" not in said
    assert process.returncode == 0, said


def start_with_tls(
    command: Command, files: TlsFiles
) -> tuple[subprocess.Popen[str], int]:
    """Start a coordinator that asks for certificates; return it and its port."""
    process = command.start(
        "127.0.0.1:0",
        *(f"--tls-ca={files.ca}", f"--tls-cert={files.cert}"),
        f"--tls-key={files.key}",
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline().split(":")[1].split()[0])


def test_a_killed_coordinator_is_not_said_to_refuse_certificates(
    command: Command, tmp_path: Path
) -> None:
    lab, key = TestCa(), new_key()
    process, port = start_with_tls(command, lab.files(tmp_path, "127.0.0.1"))
    pem = PemCredentials(lab.pem, lab.issue(key, "127.0.0.1"), Secret(pem_of(key)))

    async def reasons() -> list[str]:
        said: list[str] = []
        heard = asyncio.Event()

        def note(error: RingleaderError | None) -> None:
            if error is not None:
                said.append(str(error))
                heard.set()

        info = WorkerInfo(namespace=RED, worker_id="a", addresses=("10.0.0.1:1",))
        session = CoordinatorSession(
            f"127.0.0.1:{port}", info, tls=lambda: pem, on_trouble=note
        )
        await begin(session)
        process.kill()
        async with asyncio.timeout(WAIT_S):
            await heard.wait()
        await session.close()
        return said

    for text in asyncio.run(reasons()):
        assert "certificate" not in text
        assert "TLS" not in text


def wait_for_port(port: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), WAIT_S).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < until_s
            time.sleep(0.02)


def worker(port: int, name: str, where: JobNamespace = RED) -> CoordinatorSession:
    info = WorkerInfo(namespace=where, worker_id=name, addresses=("10.0.0.1:1",))
    return CoordinatorSession(f"127.0.0.1:{port}", info)


async def begin(each: CoordinatorSession) -> int:
    return await each.start(Deadline.after(WAIT_S))


def names(of: CoordinatorSession) -> dict[int, str]:
    return {rank: peer.worker_id for rank, peer in of.peers.items()}


async def wait_for_names(of: CoordinatorSession, expected: dict[int, str]) -> None:
    deadline = Deadline.after(WAIT_S)
    while names(of) != expected or of.trouble:
        assert not deadline.is_over(), (names(of), of.trouble)
        await asyncio.sleep(0.02)


def _kill_silently(each: CoordinatorSession) -> None:
    """End a worker as a power cut does: it stops beating and says nothing."""
    for task in each._tasks:
        task.cancel()


@pytest.mark.slow
def test_a_coordinator_that_is_killed_loses_nobody(command: Command) -> None:
    """ZF-6, ZF-7, ZF-8: workers really register, beat, are evicted and come back."""
    (port,) = free_ports(1)  # which no other program takes before the restart
    first = command.serve(port)

    async def scenario() -> None:
        a, b, c = (worker(port, name) for name in "abc")
        other = worker(port, "a", BLUE)
        assert [await begin(each) for each in (a, b, c, other)] == [0, 1, 2, 0]
        everybody = {0: "a", 1: "b", 2: "c"}
        for each in (a, b, c):
            await wait_for_names(each, everybody)
        await _check_standard_services(port)

        first.send_signal(signal.SIGKILL)
        first.wait()
        second = command.serve(port)
        for each in (a, b, c):
            await wait_for_names(each, everybody)
        assert [each.rank for each in (a, b, c)] == [0, 1, 2]

        killed_at_s = time.monotonic()
        _kill_silently(b)
        await wait_for_names(a, {0: "a", 2: "c"})
        took_s = time.monotonic() - killed_at_s
        assert took_s >= 0.5 * TIMEOUT_S, "a worker is not evicted without a reason"
        again = worker(port, "b")
        assert await begin(again) == 1
        await wait_for_names(a, everybody)
        await wait_for_names(other, {0: "a"})
        for each in (a, again, c, other):
            await each.close()
        second.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(second.wait, WAIT_S) == 0

    asyncio.run(scenario())


async def _check_standard_services(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            reply = await health.Check(request, timeout=WAIT_S)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        call = info(iter([asked]), timeout=WAIT_S)
        reply = await call.read()
        listed = {each.name for each in reply.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= listed


@pytest.mark.slow
def test_a_worker_alive_for_several_timeouts_stays_registered(command: Command) -> None:
    """ZF-7: no worker ever sent a heartbeat, so every one was evicted."""
    timeout_s = 8.0
    (port,) = free_ports(1)
    command.serve(port, timeout_s)

    async def scenario() -> None:
        changes: list[dict[int, str]] = []
        info = WorkerInfo(namespace=RED, worker_id="a", addresses=("10.0.0.1:1",))
        a = CoordinatorSession(
            f"127.0.0.1:{port}", info, on_peers=lambda p: changes.append(names(a))
        )
        b = worker(port, "b")
        assert [await begin(a), await begin(b)] == [0, 1]
        await wait_for_names(a, {0: "a", 1: "b"})
        seen = len(changes)
        await asyncio.sleep(2.2 * timeout_s)
        assert names(a) == {0: "a", 1: "b"}
        assert changes[seen:] == []
        await a.close()
        await b.close()

    asyncio.run(scenario())


def test_what_cannot_work_is_one_sentence(command: Command) -> None:
    """ZF-9: no plaintext on an address that others reach."""
    runs = {
        "no TLS": command.start("0.0.0.0:0"),
        "does not have that address": command.start("192.0.2.77:0", "--plaintext"),
    }
    for words, process in runs.items():
        said, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2, said
        assert words in said
        assert "Traceback" not in said


def test_both_sides_say_why_a_certificate_is_refused(
    command: Command, tmp_path: Path
) -> None:
    lab, key = TestCa(), new_key()
    process, port = start_with_tls(command, lab.files(tmp_path, "127.0.0.1"))
    expired = lab.issue(key, "127.0.0.1", until=-timedelta(hours=1))
    pem = PemCredentials(lab.pem, expired, Secret(pem_of(key)))

    async def refused() -> str:
        channel = CoordinatorChannel(f"127.0.0.1:{port}", lambda: pem)
        request = pb.RegisterWorkerRequest(worker_id="a", incarnation="1")
        try:
            with pytest.raises(PeerUntrusted) as caught:
                await channel.call("RegisterWorker", request, WAIT_S)
        finally:
            await channel.close()
        return str(caught.value)

    assert "our certificate: certificate has expired" in asyncio.run(refused())
    process.terminate()
    said, _ = process.communicate(timeout=WAIT_S)
    why = "ringleader coordinator: refused the certificate of a client: "
    assert said.count(f"{why}certificate has expired\n") == 1, said
    assert "ssl_transport" not in said
