"""Workers with bad connections: losses cost time, never correctness."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from ringleader.errors import ConfigError, PeerRefused, PeerUntrusted, RingleaderError
from ringleader.identity.secret_value import Secret
from ringleader.paramserver.evaluation import evaluate, load_model
from ringleader.paramserver.protocol import join_link as links
from ringleader.paramserver.protocol.messages import JoinAnswer
from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import Run, ServerOptions, open_run
from ringleader.paramserver.tasks.batch_order import batch_indices
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.worker.join import WorkerSettings
from ringleader.paramserver.worker.observer import Progress
from ringleader.paramserver.worker.server_address import ServerAddress
from ringleader.paramserver.worker.worker import Worker
from ringleader.transport.free_ports import free_ports

DIGITS = load_task("digits")


class RecordingObserver:
    """Records the events of a worker."""

    def __init__(self, on_step: Callable[[Progress], None] | None = None) -> None:
        self.joins = 0
        self.waits: list[str] = []
        self.notes: list[str] = []
        self.last: Progress | None = None
        self._on_step = on_step

    def joined(self, terms: JoinAnswer, device: str) -> None:
        self.joins += 1

    def stepped(self, progress: Progress) -> None:
        self.last = progress
        if self._on_step:
            self._on_step(progress)

    def waiting(self, reason: str, pause_s: float) -> None:
        self.waits.append(reason)

    def reconnected(self) -> None:
        self.notes.append("reached")

    def noted(self, text: str) -> None:
        self.notes.append(text)


class Server:
    """A server in a thread of this process."""

    def __init__(self, run: Run, serving: HttpServer, port: int) -> None:
        self.run = run
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._serving = serving
        serving.linger_s = 60.0
        self._thread = threading.Thread(target=serving.run, name="server", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self.run.app.training.scheduler.version

    def stop(self) -> None:
        self._serving.stop()
        self._thread.join(120)
        assert not self._thread.is_alive()
        self.run.close()


@contextmanager
def serving(
    out: Path, plan: Plan, port: int = 0, *, tls: bool = False, **options: object
) -> Iterator[Server]:
    """Serve openly on loopback, unless ``options`` say otherwise."""
    chosen = {"is_open": True, **options}
    run = open_run(DIGITS, plan, ServerOptions(out=out, **chosen))  # type: ignore[arg-type]
    listener = ListenAddress(host="127.0.0.1", port=port).listen()
    context = run.key.context() if tls else None
    server = Server(
        run, HttpServer(run.app, listener, context), listener.getsockname()[1]
    )
    try:
        yield server
    finally:
        server.stop()


class WorkerThreads:
    """Workers in threads; ``join`` raises what they raised."""

    def __init__(
        self,
        address: Callable[[], ServerAddress],
        logs: list[RecordingObserver],
        **more: str,
    ) -> None:
        self.errors: list[RingleaderError] = []
        wanted = WorkerSettings(name="test", device="cpu", **more)  # type: ignore[arg-type]
        self._threads = [
            threading.Thread(
                target=self._work, args=(wanted, address(), log), daemon=True
            )
            for log in logs
        ]
        for thread in self._threads:
            thread.start()

    def join(self, within_s: float = 300) -> None:
        deadline_s = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            assert not thread.is_alive(), "a worker does not come to its end"
        assert self.errors == []

    def _work(
        self, wanted: WorkerSettings, address: ServerAddress, log: RecordingObserver
    ) -> None:
        worker = Worker.open(wanted, address, log)
        try:
            worker.run()
        except RingleaderError as error:
            self.errors.append(error)
        finally:
            worker.close()


def alone(plan: Plan) -> dict[str, torch.Tensor]:
    """Compute the weights of one process that trains on the same batches."""
    model, samples = DIGITS.model(), DIGITS.samples("train")
    optimizer = DIGITS.optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    for version in range(plan.rounds):
        first = version * plan.workers
        numbers = range(first, first + plan.workers)
        chosen = [batch_indices(0, b, DIGITS.batch_size, len(samples)) for b in numbers]
        optimizer.zero_grad()
        DIGITS.loss(model, samples.batch(torch.cat(chosen))).backward()  # type: ignore[no-untyped-call]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * plan.rate_factor(version, plan.workers)
        optimizer.step()
    return model.state_dict()


def wait_until(is_so: Callable[[], bool]) -> None:
    expires_s = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < expires_s
        time.sleep(0.01)


def check_like_alone(out: Path, plan: Plan) -> None:
    """One update lost, or applied twice, is off by about 1e-2."""
    found = load_model(DIGITS, out / "weights.safetensors").state_dict()
    expected = alone(plan)
    off = max(float((found[n] - expected[n]).abs().max()) for n in expected)
    assert off <= 1e-5


# -- lines that lose answers -------------------------------------------------------


class LosingProxy(ThreadingHTTPServer):
    """A proxy that loses the first response to each request."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Loser)
        self.behind = port
        self.seen: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.lock = threading.Lock()

    def loses(self, what: str, kind: str) -> bool:
        """Return whether to lose this response: the first, or an odd one."""
        with self.lock:
            self.seen[what] += 1
            is_lost = self.seen[what] % 2 == 1
            self.lost[kind] += is_lost
            return is_lost

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about workers that disconnected."""


class _Loser(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LosingProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        behind = http.client.HTTPConnection(
            "127.0.0.1", self.server.behind, timeout=120
        )
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        data = answer.read()
        behind.close()
        who = self.headers.get("Authorization", "")
        what = f"{self.command} {self.path} {who} {hashlib.sha256(body).hexdigest()}"
        if self.server.loses(what, f"{self.command} {self.path.split('/')[2][:4]}"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in (
                "connection",
                "transfer-encoding",
                "content-length",
            ):
                self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.mark.slow
def test_every_answer_may_be_lost_once_and_each_update_counts_once(
    tmp_path: Path,
) -> None:
    plan = Plan(rounds=6, workers=2)
    logs = [RecordingObserver(), RecordingObserver()]
    with serving(tmp_path, plan) as server:
        proxy = LosingProxy(server.port)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{proxy.server_address[1]}"
            WorkerThreads(lambda: ServerAddress.from_links([url]), logs).join()
        finally:
            proxy.shutdown()
            proxy.server_close()

    assert proxy.lost["PUT upda"] >= 12, "no update got through at once"
    assert proxy.lost["POST join"] == 2
    assert proxy.lost["GET weig"] > 0
    assert sum(log.last.counted for log in logs if log.last) == 12
    check_like_alone(tmp_path, plan)


class CuttingProxy:
    """A proxy that cuts every connection after some bytes, and counts them."""

    def __init__(self, port: int, limit_bytes: int) -> None:
        self._behind = port
        self._limit = limit_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.num_cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._behind), 60)
            for source, target in ((ours, theirs), (theirs, ours)):
                pump = threading.Thread(
                    target=self._pump, args=(source, target), daemon=True
                )
                pump.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        left = self._limit
        try:
            while left and (block := source.recv(min(left, 65536))):
                target.sendall(block)
                left -= len(block)
            self.num_cut += left == 0
        except OSError:
            pass
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


WIDE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8000), nn.Linear(8000, 10))

def dataset(split):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(64, 1, 8, 8, generator=dice), torch.arange(64) % 10

def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.slow
def test_broken_transfers_resume(tmp_path: Path) -> None:
    """2.4 MB each way over connections that break after 1 MB need resuming."""
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    task = load_task(str(path))
    out = tmp_path / "out"
    run = open_run(
        task, Plan(rounds=2, workers=1), ServerOptions(out=out, is_open=True)
    )
    listener = ListenAddress(host="127.0.0.1", port=0).listen()
    server = Server(run, HttpServer(run.app, listener, None), listener.getsockname()[1])
    proxy = CuttingProxy(server.port, 1_000_000)
    log = RecordingObserver()
    try:
        url = f"http://127.0.0.1:{proxy.port}"
        WorkerThreads(
            lambda: ServerAddress.from_links([url]), [log], task=str(path)
        ).join()
    finally:
        proxy.close()
        server.stop()

    assert proxy.num_cut >= 4
    assert log.last is not None
    assert log.last.counted == 2
    whole = 4 * sum(p.numel() for p in task.model().parameters())
    assert log.last.received_bytes < 2 * whole + 200_000, "nothing came twice"


# -- servers that go and come back -------------------------------------------------


class Halt:
    """Stops a worker at a version until it is released."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._there = threading.Event()
        self._over = threading.Event()

    def __call__(self, progress: Progress) -> None:
        if progress.version >= self._version:
            self._there.set()
            assert self._over.wait(300)

    def reconnected(self) -> None:
        assert self._there.wait(300)

    def over(self) -> None:
        self._over.set()


@pytest.mark.slow
def test_workers_wait_out_an_outage_and_a_restart(tmp_path: Path) -> None:
    plan = Plan(rounds=10, workers=2)
    halt = Halt(4)
    logs = [RecordingObserver(halt), RecordingObserver()]
    (port,) = free_ports(1)
    with serving(tmp_path, plan, port):
        worker_threads = WorkerThreads(
            lambda: ServerAddress.from_links([f"http://127.0.0.1:{port}"]), logs
        )
        halt.reconnected()
    halt.over()
    wait_until(lambda: all(log.waits for log in logs))  # both have met the outage
    with serving(tmp_path, plan, port) as server:
        assert server.version >= 4
        worker_threads.join()

    assert all(log.waits and "reached" in log.notes for log in logs)
    assert all(log.joins == 1 for log in logs), "their tokens are still good"
    check_like_alone(tmp_path, plan)


@pytest.mark.slow
def test_workers_follow_a_server_that_moves_and_join_one_that_forgot_them(
    tmp_path: Path,
) -> None:
    plan = Plan(rounds=6, workers=1)
    halt = Halt(3)
    log = RecordingObserver(halt)
    file = tmp_path / "server"
    with serving(tmp_path / "first", plan) as server:
        file.write_text(server.url)
        worker_threads = WorkerThreads(
            lambda: ServerAddress.from_links([], file), [log]
        )
        halt.reconnected()
    with serving(tmp_path / "second", plan) as server:
        halt.over()
        new = tmp_path / "new"
        new.write_text(server.url)
        new.replace(file)  # whole, whenever it is read
        worker_threads.join()

    assert log.joins == 2
    assert f"the server is now at {server.url}" in log.notes
    check_like_alone(tmp_path / "second", plan)


# -- being turned away -------------------------------------------------------------


def refused(address: ServerAddress, **more: object) -> RingleaderError:
    """Return why a worker is refused; it must stop at once, not retry."""
    wanted = WorkerSettings(name="test", device="cpu", **more)  # type: ignore[arg-type]
    worker = Worker.open(wanted, address, RecordingObserver())
    try:
        with pytest.raises(RingleaderError) as caught:
            worker.run()
    finally:
        worker.close()
    return caught.value


def test_a_wrong_pin_or_task_or_key_fails_at_once(tmp_path: Path) -> None:
    plan = Plan(rounds=1, workers=1)
    other = tmp_path / "digits.py"
    other.write_text(WIDE)
    with serving(tmp_path / "out", plan, tls=True, is_open=False) as server:
        key = server.run.key
        url = f"https://127.0.0.1:{server.port}"
        good = links.build(url, key.secret.reveal(), key.fingerprint).reveal()
        wrong_code = links.build(url, b"x" * 16, key.fingerprint).reveal()
        wrong_key = links.build(url, key.secret.reveal(), b"y" * 16).reveal()

        unknown = refused(ServerAddress.from_links([wrong_code]), pin=Secret("1234"))
        assert isinstance(unknown, PeerRefused)
        assert "does not know that code" in str(unknown)
        mismatch = refused(ServerAddress.from_links([good]), task=str(other))
        assert isinstance(mismatch, ConfigError)
        assert "model: the server has '4 tensors, 5450 values" in str(mismatch)
        assert "data: the server has '1437 samples" in str(mismatch)
        stranger = refused(ServerAddress.from_links([wrong_key]))
        assert isinstance(stranger, PeerUntrusted)
        assert "its key is not the one in the link" in str(stranger)
        assert isinstance(refused(ServerAddress.from_links([url])), PeerUntrusted), (
            "nobody vouches"
        )
        assert server.run.app.training.scheduler.workers == {}

        WorkerThreads(
            lambda: ServerAddress.from_links([good]), [RecordingObserver()]
        ).join()
        assert server.version == 1


def test_a_user_is_asked_for_the_pin_until_it_is_right(tmp_path: Path) -> None:
    typed = iter(["0000", "4711"])
    plan = Plan(rounds=1, workers=1)
    with serving(tmp_path, plan, is_open=False, pin=Secret("4711")) as server:
        log = RecordingObserver()
        wanted = WorkerSettings(
            name="test", device="cpu", ask_pin=lambda: Secret(next(typed))
        )
        worker = Worker.open(wanted, ServerAddress.from_links([server.url]), log)
        worker.run()
        worker.close()

    assert list(typed) == []
    assert log.last is not None
    assert log.last.counted == 1


# -- other modes and codecs --------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "codec"),
    [
        pytest.param(
            Plan(rounds=50, workers=2), "int8", id="int8", marks=pytest.mark.slow
        ),
        pytest.param(
            Plan(rounds=50, workers=2), "topk:0.1", id="topk", marks=pytest.mark.slow
        ),
        pytest.param(Plan(rounds=3, workers=2, steps=25), "bf16", id="local"),
        pytest.param(
            Plan(rounds=100, workers=2, mode="async"),
            "none",
            id="async",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Plan(rounds=100, workers=2, mode="bounded", staleness=4),
            "int8",
            id="bounded",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_modes_and_codecs_learn_as_well(
    tmp_path: Path, plan: Plan, codec: str
) -> None:
    logs = [RecordingObserver(), RecordingObserver()]
    with serving(tmp_path, plan, codec=codec) as server:
        WorkerThreads(lambda: ServerAddress.from_links([server.url]), logs).join()

    model = load_model(DIGITS, tmp_path / "weights.safetensors")
    found = evaluate(DIGITS, model, torch.device("cpu"))
    assert found.accuracy is not None
    assert found.accuracy >= 0.95


def work_for(url: str, **limits: float) -> tuple[bool, Worker]:
    """Run a worker with limits; return whether training was over, and the worker."""
    wanted = WorkerSettings(name="brief", device="cpu", **limits)  # type: ignore[arg-type]
    worker = Worker.open(wanted, ServerAddress.from_links([url]), RecordingObserver())
    try:
        return worker.run(), worker
    finally:
        worker.close()


def test_a_worker_leaves_after_the_updates_and_the_time_that_its_user_gives(
    tmp_path: Path,
) -> None:
    """Also while it waits for others to begin, and for a server that is gone."""
    with serving(tmp_path / "one", Plan(rounds=9, workers=1)) as server:
        is_done, worker = work_for(server.url, most_updates=3)
        assert (is_done, worker.totals.counted, server.version) == (False, 3, 3)
        members = server.run.app.training.scheduler.workers.values()
        assert [member.has_left for member in members] == [True]
        is_done, worker = work_for(server.url, most_updates=99, most_seconds=3600)
        assert (is_done, worker.totals.counted, server.version) == (True, 6, 9)
    with serving(tmp_path / "two", Plan(rounds=9, workers=2)) as server:
        is_done, worker = work_for(server.url, most_seconds=0.5)
        assert (is_done, worker.totals.counted, server.version) == (False, 0, 0)
    is_done, _ = work_for(server.url, most_seconds=0.5)
    assert not is_done
