"""A parameter server with a tiny task, and clients that speak only its protocol.

Run as a program, it is that server: ``param_server.py OUT PORT ROUNDS WORKERS MODE``.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ringleader.identity import server_key
from ringleader.identity.secret_value import Secret
from ringleader.identity.server_certificate import ServerCertificate
from ringleader.paramserver.protocol import bodies, join_link
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.server.global_weights import warm_up
from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import Run, ServerOptions, open_run
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.tasks.task import Task
from ringleader.transport.free_ports import free_ports

FEATURES, CLASSES = 50, 20
RATE = 0.25


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def task() -> Task:
    """Build a task with plain SGD: the weights are the initial ones minus a sum."""
    return Task(
        name="tiny",
        code="",
        make_model=model,
        make_samples=lambda split: (torch.zeros(8, 1),),
        loss=lambda model, batch: torch.zeros(()),
        make_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=RATE),
        predict=lambda model, batch: (torch.zeros(1), torch.zeros(1)),
    )


MANIFEST = Manifest.of(model())
FINGERPRINT = task().fingerprint()


def gradient(version: int, shard: int) -> NDArray[np.float32]:
    """Return the gradient of a shard of a version; no two are alike."""
    chance = np.random.default_rng([version, shard])
    return chance.standard_normal(MANIFEST.num_parameters).astype(np.float32)


def expected(rounds: int, shards: int) -> NDArray[np.float64]:
    """Compute the weights after ``rounds`` in float64."""
    weights = MANIFEST.values(model()).astype(np.float64)
    for version in range(rounds):
        parts = [gradient(version, s).astype(np.float64) for s in range(shards)]
        weights -= RATE * np.mean(parts, axis=0)
    return weights


def weights_in(folder: Path) -> NDArray[np.float32]:
    """Read the final weights of a run."""
    body = (folder / "weights.safetensors").read_bytes()
    tensors = bodies.read_weights(MANIFEST, body)
    return np.concatenate(
        [tensors[e.name].numpy().ravel() for e in MANIFEST.parameters]
    )


@dataclass
class WorkerClient:
    """Sends the requests of a worker, and computes nothing."""

    url: str
    code: str
    verify: Any = True
    token: str = ""
    worker: str = ""
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    source: str | None = None
    """Address to connect from; None: the system's choice."""

    def __post_init__(self) -> None:
        self.http = self.client()

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url,
            transport=httpx2.HTTPTransport(
                verify=self.verify, trust_env=False, local_address=self.source
            ),
            trust_env=False,
            timeout=120,
        )

    def close(self) -> None:
        self.http.close()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def join(self, **changes: object) -> httpx2.Response:
        body = {"code": self.code, "task": FINGERPRINT, "name": "friend"}
        body |= {"device": "cpu", "nonce": self.nonce}
        answer = self.http.post("/v1/join", json={**body, **changes})
        if answer.status_code == 200:
            self.token, self.worker = answer.json()["token"], answer.json()["worker"]
        return answer

    def work(self, wait_s: float | None = None) -> dict[str, Any] | None:
        """Ask for an assignment: once, or without a time until there is one."""
        while True:
            wait = 10.0 if wait_s is None else wait_s
            answer = self.http.get(f"/v1/work?wait={wait}", headers=self.headers)
            assert answer.status_code in (200, 204), answer.text
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
            if wait_s is not None:
                return None

    def leave(self) -> None:
        """Say goodbye: a server that has finished does not wait for us."""
        with suppress(httpx2.TransportError):
            self.http.post("/v1/leave", headers=self.headers, json={})

    def put(
        self, work: dict[str, Any], body: bytes | None = None, **headers: str
    ) -> httpx2.Response:
        """Send the update of an assignment; ``X_Codec`` is the header X-Codec."""
        more = {"X-Samples": "8", "X-Loss": "0.5"}
        more |= {"X-First-Batch": str(work["first_batch"])}
        more |= {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            body = update_body(work["version"], work["shard"])
        where = f"/v1/updates/{work['version']}/{work['shard']}"
        return self.http.put(where, content=body, headers=self.headers | more)

    def step(self) -> dict[str, Any] | None:
        """Complete one assignment; return None when training is over."""
        work = self.work()
        if work is None or work["kind"] == "finished":
            return None
        assert self.put(work).status_code in (200, 409)
        return work


def update_body(version: int, shard: int, codec: str = "none") -> bytes:
    rest = np.zeros(MANIFEST.num_buffers, np.float32)
    return bodies.pack_update(MANIFEST, Update(gradient(version, shard), rest), codec)


@dataclass
class Server:
    """A server in a thread of this process."""

    url: str
    run: Run
    serving: HttpServer

    @property
    def code(self) -> str:
        return join_link.encode(self.run.key.secret.reveal())

    @property
    def training(self) -> Training:
        return self.run.app.training

    @contextmanager
    def clients(self, count: int) -> Iterator[list[WorkerClient]]:
        made = [WorkerClient(self.url, self.code) for _ in range(count)]
        try:
            for client in made:
                assert client.join().status_code == 200
            for client in made:  # the first round waits until all have asked
                client.work(0.0)
            yield made
        finally:
            for client in made:
                client.close()


@contextmanager
def server(  # noqa: PLR0913 # each is named where it is given
    out: Path,
    *,
    rounds: int = 3,
    workers: int = 1,
    pin: str | None = None,
    tls: bool = False,
    every: int = 3,
    what: Task | None = None,
    host: str = "127.0.0.1",
    certificate: ServerCertificate | None = None,
    **plan: object,
) -> Iterator[Server]:
    """Serve until the block ends."""
    options = ServerOptions(
        out=out, pin=Secret(pin) if pin else None, checkpoint_every=every
    )
    settings: Any = {"scale_rate": False, **plan}
    chosen = Plan(rounds=rounds, workers=workers, **settings)
    run = open_run(what or task(), chosen, options)
    listener = ListenAddress(host=host, port=0).listen()
    port = listener.getsockname()[1]
    own = certificate.context if certificate is not None else run.key.context()
    serving = HttpServer(run.app, listener, own if tls else None)
    serving.linger_s = 2.0
    thread = threading.Thread(target=serving.run, name="server")
    thread.start()
    try:
        yield Server(f"http{'s' * tls}://{host}:{port}", run, serving)
    finally:
        serving.stop()
        thread.join(120)
        run.close()
    assert not thread.is_alive()


def main() -> None:
    """Serve in a child process, and in a new one each time it is killed."""
    torch.set_num_threads(1)
    warm_up()
    while True:
        child = os.fork()
        if not child:
            serve(*sys.argv[1:])
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


def serve(out: str, port: str, rounds: str, workers: str, mode: str) -> None:
    """Print pid and port, then serve until training is over."""
    plan = Plan(
        rounds=int(rounds),
        workers=int(workers),
        mode=mode,  # type: ignore[arg-type] # the plan checks
        scale_rate=False,
    )
    run = open_run(task(), plan, ServerOptions(out=Path(out), checkpoint_every=4))
    listener = ListenAddress(host="127.0.0.1", port=int(port)).listen()
    sys.stdout.write(f"{os.getpid()} {listener.getsockname()[1]} {run.replayed}\n")
    sys.stdout.flush()
    serving = HttpServer(run.app, listener, None)
    serving.linger_s = 120.0
    serving.run()
    run.close()


@dataclass
class ServerProcess:
    """One process of a restarting server."""

    pid: int
    port: int
    replayed: int


class RestartingServer:
    """A server in a process of its own that is started again whenever it dies."""

    def __init__(self, out: Path, *, rounds: int, workers: int, mode: str) -> None:
        port = free_ports(1)[0]
        words = [out, port, rounds, workers, mode]
        self._out = out
        self._process_now: ServerProcess | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.param_server", *map(str, words)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def next(self) -> ServerProcess | None:
        """Wait for the next process to serve; None when training is over."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process_now = ServerProcess(*map(int, line.split())) if line else None
        return self._process_now

    @property
    def code(self) -> str:
        return join_link.encode(server_key.load_or_make(self._out).secret.reveal())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        if self._process_now is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process_now.pid, signal.SIGKILL)
        self._process.communicate()


if __name__ == "__main__":
    main()
