"""Measures a round of the internet protocol: weights down, a gradient up.

    .venv/bin/python benchmarks/internet.py --out benchmarks/results/internet.json

It is compared with a simple baseline: all weights as JSON lists down, gzip of
torch.save up. Both servers run in a process of their own on core 0, the worker in this
process on the other cores, over loopback HTTP. A round is one download and one upload,
until the server acknowledges the gradient; Ringleader's has then also checked, recorded
and applied it. ``longest_callback_ms`` is the longest time that the server's event loop
was busy with one callback, ``longest_pause_ms`` how late a timer of the loop was at
most. ``witness_pause_ms`` is the same for an idle process on that core: it shows the
noise of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import io
import json
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor, nn

from ringleader.paramserver.protocol import bodies, join_link, manifest
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.server.http.http_server import HttpServer, ListenAddress
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import ServerOptions, open_run
from ringleader.paramserver.tasks.task import Task

ROWS = 1000


def model_of(count: int) -> nn.Module:
    """Build a linear layer with about ``count`` parameters."""
    torch.manual_seed(0)
    return nn.Linear(count // ROWS, ROWS, bias=False)


def task_of(count: int) -> Task:
    """Build a task that is never computed; only its model is sent."""
    return Task(
        name="bench",
        code="",
        make_model=lambda: model_of(count),
        make_samples=lambda split: (torch.zeros(64, 1),),
        loss=lambda model, batch: torch.zeros(()),
        make_optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.01, momentum=0.9),
        predict=lambda model, batch: (torch.zeros(1), torch.zeros(1)),
    )


class Pauses:
    """Measures the latest timer and the longest callback since the last query."""

    def __init__(self, pipe: Connection, stop: Callable[[], None]) -> None:
        self._pipe = pipe
        self._stop = stop
        self.late_s = self.busy_s = 0.0

    async def measure(self) -> None:
        """Measure and answer queries of the other process, until cancelled."""
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._answer)
        plain = asyncio.events.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            then_s = time.perf_counter()
            plain(handle)
            self.busy_s = max(self.busy_s, time.perf_counter() - then_s)

        asyncio.events.Handle._run = timed
        while True:
            then_s = time.perf_counter()
            await asyncio.sleep(0.001)
            self.late_s = max(self.late_s, time.perf_counter() - then_s - 0.001)

    def _answer(self) -> None:
        if self._pipe.recv() == "stop":
            self._stop()
            return
        self._pipe.send((self.busy_s, self.late_s, time.process_time()))
        self.late_s = self.busy_s = 0.0


def pin_to_first_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    torch.set_num_threads(1)


def serve_ringleader(count: int, pipe: Connection) -> None:
    """Run Ringleader's server in this process."""
    pin_to_first_core()
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(rounds=10**6, workers=1)
        options = ServerOptions(out=Path(folder), checkpoint_every=10**6)
        run = open_run(task_of(count), plan, options)
        listener = ListenAddress(host="127.0.0.1", port=0).listen()
        serving = HttpServer(run.app, listener, None)

        async def go() -> None:
            measuring = asyncio.create_task(Pauses(pipe, serving.stop).measure())
            secret = join_link.encode(run.key.secret.reveal())
            pipe.send((listener.getsockname()[1], secret))
            await serving.serve()
            measuring.cancel()

        asyncio.run(go())
        run.close()


def baseline_app(count: int) -> Starlette:
    """Build the baseline server, which does everything in the event loop."""
    model = model_of(count)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    async def weights(request: Request) -> Response:
        lists = {name: t.tolist() for name, t in model.state_dict().items()}
        return JSONResponse({"version": 0, "weights": lists})

    async def submit(request: Request) -> Response:
        raw = gzip.decompress(await request.body())
        sent = torch.load(io.BytesIO(raw), weights_only=True)
        for name, parameter in model.named_parameters():
            parameter.grad = sent[name]
        optimizer.step()
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/model", weights),
            Route("/submit", submit, methods=["POST"]),
        ]
    )


def serve_baseline(count: int, pipe: Connection) -> None:
    """Run the baseline server in this process."""
    pin_to_first_core()
    server = uvicorn.Server(uvicorn.Config(baseline_app(count), log_level="warning"))
    listener = ListenAddress(host="127.0.0.1", port=0).listen()

    def stop() -> None:
        server.should_exit = True

    async def go() -> None:
        measuring = asyncio.create_task(Pauses(pipe, stop).measure())
        pipe.send((listener.getsockname()[1], ""))
        await server.serve(sockets=[listener])
        measuring.cancel()

    asyncio.run(go())


def witness(count: int, pipe: Connection) -> None:
    """Sleep on the server's core, and measure how late an idle process wakes up."""
    pin_to_first_core()
    late_s = 0.0
    while True:
        then_s = time.perf_counter()
        time.sleep(0.001)
        late_s = max(late_s, time.perf_counter() - then_s - 0.001)
        if pipe.poll():
            if pipe.recv() == "stop":
                return
            pipe.send(late_s)
            late_s = 0.0


Target = Callable[[int, Connection], None]


@contextmanager
def process(target: Target, count: int) -> Iterator[Connection]:
    """Start a process, yield the pipe to it, and stop it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    started = context.Process(target=target, args=(count, theirs))
    started.start()
    try:
        yield ours
    finally:
        ours.send("stop")
        started.join(30)


@dataclass(frozen=True)
class Served:
    """A server process, its witness, and the server's address and join code."""

    pipe: Connection
    beside: Connection
    url: str
    code: str

    def measured(self) -> Measured:
        """Return the longest callback and pauses since the last query."""
        self.pipe.send("measure")
        self.beside.send("measure")
        return Measured(*self.pipe.recv(), self.beside.recv())


@contextmanager
def server(target: Target, count: int) -> Iterator[Served]:
    """Start a server on core 0, and its witness."""
    with process(target, count) as pipe, process(witness, 0) as beside:
        port, code = pipe.recv()
        yield Served(pipe, beside, f"http://127.0.0.1:{port}", code)


@dataclass(frozen=True)
class Measured:
    """Measurements of a server process."""

    busy_s: float
    late_s: float
    cpu_s: float
    machine_s: float
    """Longest pause of the witness."""


@dataclass(frozen=True)
class Round:
    """The times and sizes of one download and one upload."""

    down_s: float
    up_s: float
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Sender:
    """A worker that only sends and receives."""

    client: httpx2.Client
    token: str
    known: manifest.Manifest
    update: bodies.Update
    codec: str
    weights_codec: str

    def round(self) -> Round:
        """Make one round of the protocol."""
        headers = {"Authorization": f"Bearer {self.token}"}
        work = self.client.get("/v1/work", headers=headers).json()
        began_s = time.perf_counter()
        where = f"/v1/weights/{work['version']}?codec={self.weights_codec}"
        got = self.client.get(where, headers=headers).content
        bodies.read_weights(self.known, got, self.weights_codec)
        middle_s = time.perf_counter()
        body = bodies.pack_update(self.known, self.update, self.codec)
        headers |= {"X-Samples": "32", "X-Loss": "1"}
        headers |= {"X-Codec": bodies.wire_name(self.codec)}
        headers |= {"X-First-Batch": str(work["first_batch"])}
        where = f"/v1/updates/{work['version']}/{work['shard']}"
        self.client.put(where, content=body, headers=headers).raise_for_status()
        end_s = time.perf_counter()
        return Round(middle_s - began_s, end_s - middle_s, len(got), len(body))


def round_baseline(client: httpx2.Client, gradient: dict[str, Tensor]) -> Round:
    """Make one round of the baseline."""
    began_s = time.perf_counter()
    got = client.get("/model").content
    {name: torch.tensor(v) for name, v in json.loads(got)["weights"].items()}
    middle_s = time.perf_counter()
    file = io.BytesIO()
    torch.save(gradient, file)
    body = gzip.compress(file.getvalue())
    client.post("/submit", content=body).raise_for_status()
    return Round(
        middle_s - began_s, time.perf_counter() - middle_s, len(got), len(body)
    )


Row = dict[str, Any]


def measure_ringleader(count: int, codec: str, weights_codec: str, rounds: int) -> Row:
    """Measure the best of some rounds, and the longest pause in all of them."""
    known = Manifest.of(model_of(count))
    values = np.random.default_rng(0).standard_normal(known.num_parameters) * 1e-3
    update = bodies.Update(values.astype(np.float32), np.zeros(0, np.float32))
    task = task_of(count).fingerprint()
    with server(serve_ringleader, count) as served:
        url, body = served.url, {"code": served.code, "task": task}
        with httpx2.Client(base_url=url, trust_env=False, timeout=120) as client:
            joined = client.post("/v1/join", json=body)
            token = joined.raise_for_status().json()["token"]
            sender = Sender(client, token, known, update, codec, weights_codec)
            sender.round()
            before = served.measured()
            found = [sender.round() for _ in range(rounds)]
            after = served.measured()
    name = f"ringleader, up {codec}, down {weights_codec}"
    return row(name, found, after, (after.cpu_s - before.cpu_s) / rounds)


def measure_baseline(count: int) -> Row:
    """Measure one round; it takes long enough that one suffices."""
    gradient = {"weight": torch.randn(ROWS, count // ROWS) * 1e-3}
    with (
        server(serve_baseline, count) as served,
        httpx2.Client(base_url=served.url, trust_env=False, timeout=600) as client,
    ):
        before = served.measured()
        found = [round_baseline(client, gradient)]
        after = served.measured()
    return row("baseline", found, after, after.cpu_s - before.cpu_s)


def row(name: str, found: list[Round], seen: Measured, cpu_s: float) -> Row:
    """Build a row of the result."""
    best = min(found, key=lambda r: r.down_s + r.up_s)
    moved = best.bytes_down + best.bytes_up
    seconds = best.down_s + best.up_s
    return {
        "scheme": name,
        "down_s": round(best.down_s, 3),
        "up_s": round(best.up_s, 3),
        "bytes_down": best.bytes_down,
        "bytes_up": best.bytes_up,
        "gbit_per_s": round(moved * 8 / seconds / 1e9, 3),
        "server_cpu_s": round(cpu_s, 3),
        "gbit_per_server_cpu_s": round(moved * 8 / cpu_s / 1e9, 3),
        "longest_callback_ms": round(seen.busy_s * 1000, 1),
        "longest_pause_ms": round(seen.late_s * 1000, 1),
        "witness_pause_ms": round(seen.machine_s * 1000, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for codec, weights in (("none", "none"), ("int8", "none"), ("int8", "bf16")):
        rows.append(measure_ringleader(asked.parameters, codec, weights, asked.rounds))
        print(json.dumps(rows[-1]), flush=True)
    if not asked.no_baseline:
        rows.append(measure_baseline(asked.parameters))
        print(json.dumps(rows[-1]), flush=True)
        baseline = rows[-1]
        for ours in rows[:-1]:
            faster = (baseline["down_s"] + baseline["up_s"]) / (
                ours["down_s"] + ours["up_s"]
            )
            all_ours = ours["bytes_down"] + ours["bytes_up"]
            fewer = (baseline["bytes_down"] + baseline["bytes_up"]) / all_ours
            print(f"{ours['scheme']}: {faster:.1f}x faster, {fewer:.1f}x fewer bytes")
    if asked.out:
        facts = {"parameters": asked.parameters, "load": os.getloadavg()}
        facts |= {"python": platform.python_version(), "torch": torch.__version__}
        asked.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
