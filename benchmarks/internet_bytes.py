"""Measures the bytes of a round and the accuracy of the result, on the digits task.

    .venv/bin/python benchmarks/internet_bytes.py --out benchmarks/results/FILE.json

Every scheme trains with two workers on the same 2 x ROUNDS batches: a server process
and two worker processes that talk HTTP over loopback. In the baseline, each worker gets
all weights as JSON lists and sends gzip of torch.save of its gradients in each round.
The other schemes are ``ringleader serve`` and ``ringleader work`` as users run them.

``bytes_per_round`` is what one worker sends and receives for the samples of one round,
bodies only. With 50 local steps one download and one upload serve the samples of 50
rounds, so they are divided by 50. For Ringleader all bodies count (joining, asking for
work, waiting); for the baseline only weights and gradients, not its polling.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import nn

from ringleader.paramserver.evaluation import evaluate, load_model
from ringleader.paramserver.server.http.http_server import ListenAddress
from ringleader.paramserver.tasks.batch_order import batch_indices
from ringleader.paramserver.tasks.loading import load_task

WORKERS = 2
STEPS = 50
BAR_INT8, BAR_LOCAL, BAR_POINTS = 4.0, 50.0, 1.0
DIGITS = load_task("digits")

Row = dict[str, Any]


class BaselineServer:
    """The baseline: collects gradients, and makes a step when it has all of a round."""

    def __init__(self, rounds: int, path: Path) -> None:
        self._model = DIGITS.model()
        self._version = 0
        self._rounds = rounds
        self._path = path
        self._optimizer = DIGITS.optimizer(self._model)
        for group in self._optimizer.param_groups:
            group["lr"] *= WORKERS
        self._buffer: list[dict[str, torch.Tensor]] = []

    def app(self) -> Starlette:
        submit = Route("/submit_gradients", self._submit, methods=["POST"])
        return Starlette(
            routes=[
                Route("/version", self._say_version),
                Route("/model", self._say_model),
                submit,
            ]
        )

    async def _say_version(self, request: Request) -> Response:
        return JSONResponse({"version": self._version})

    async def _say_model(self, request: Request) -> Response:
        lists = {name: t.tolist() for name, t in self._model.state_dict().items()}
        return JSONResponse({"version": self._version, "weights": lists})

    async def _submit(self, request: Request) -> Response:
        if int(request.headers["x-worker-version"]) != self._version:
            return JSONResponse({"status": "stale"}, 409)
        raw = gzip.decompress(await request.body())
        self._buffer.append(torch.load(io.BytesIO(raw), weights_only=True))
        if len(self._buffer) == WORKERS:
            for name, parameter in self._model.named_parameters():
                found = [gradients[name] for gradients in self._buffer]
                parameter.grad = torch.stack(found).mean(dim=0)
            self._optimizer.step()
            self._buffer.clear()
            self._version += 1
            if self._version == self._rounds:
                torch.save(self._model.state_dict(), self._path)
        return JSONResponse({"status": "ok"})


def serve_baseline(rounds: int, path: Path, pipe: Connection) -> None:
    """Run the baseline server; it writes the trained model to ``path``."""
    torch.set_num_threads(1)
    app = BaselineServer(rounds, path).app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listener = ListenAddress(host="127.0.0.1", port=0).listen()
    pipe.send(listener.getsockname()[1])
    server.run(sockets=[listener])


def work_baseline(rounds: int, rank: int, port: int, pipe: Connection) -> None:
    """Run a baseline worker; send the bytes it received and sent to ``pipe``."""
    torch.set_num_threads(1)
    model, samples = DIGITS.model(), DIGITS.samples("train")
    down = up = 0
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for version in range(rounds):
            while client.get("/version").json()["version"] < version:
                time.sleep(0.001)
            got = client.get("/model").content
            lists = json.loads(got)["weights"]
            model.load_state_dict({n: torch.tensor(v) for n, v in lists.items()})
            batch = batch_indices(
                0, version * WORKERS + rank, DIGITS.batch_size, len(samples)
            )
            model.zero_grad()
            DIGITS.loss(model, samples.batch(batch)).backward()
            file = io.BytesIO()
            torch.save({n: p.grad for n, p in model.named_parameters()}, file)
            body = gzip.compress(file.getvalue())
            headers = {"X-Worker-Version": str(version)}
            client.post("/submit_gradients", content=body, headers=headers)
            down, up = down + len(got), up + len(body)
    pipe.send((down, up))


def measure_baseline(rounds: int) -> Row:
    context = multiprocessing.get_context("spawn")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trained_model.pth")
        ours, theirs = context.Pipe()
        server = context.Process(target=serve_baseline, args=(rounds, path, theirs))
        server.start()
        port = ours.recv()
        pipes = [context.Pipe() for _ in range(WORKERS)]
        workers = [
            context.Process(target=work_baseline, args=(rounds, rank, port, pipe[1]))
            for rank, pipe in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        moved = [pipe[0].recv() for pipe in pipes]
        for worker in workers:
            worker.join(30)
        server.terminate()
        server.join(30)
        model = DIGITS.model()
        model.load_state_dict(torch.load(path, weights_only=True))
    down, up = (sum(each) for each in zip(*moved, strict=True))
    return row("baseline", Moved(down, up, rounds), model, time.monotonic() - began_s)


@dataclass(frozen=True)
class Scheme:
    """Flags for ``ringleader serve``."""

    name: str
    steps: int
    codec: str
    weights_codec: str


@contextmanager
def command(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a ringleader command; kill it when the block ends."""
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ringleader"), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def measure_ringleader(ours: Scheme, rounds: int) -> Row:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        numbers = {"--workers": WORKERS, "--rounds": rounds // ours.steps, "--port": 0}
        numbers |= {"--steps": ours.steps}
        flags = [str(word) for pair in numbers.items() for word in pair]
        flags += ["--codec", ours.codec, "--weights-codec", ours.weights_codec]
        flags += ["--http", "--open", "--out", folder]
        server = stack.enter_context(command("serve", "digits", *flags))
        link = Path(folder, "join-link")
        while not link.exists():
            assert server.poll() is None, "the server does not start"
            time.sleep(0.05)
        flags = ["--server-file", str(link), "--threads", "1", "--json"]
        workers = [stack.enter_context(command("work", *flags)) for _ in range(WORKERS)]
        summaries = [
            json.loads(worker.communicate(timeout=120)[0]) for worker in workers
        ]
        server.communicate(timeout=60)
        model = load_model(DIGITS, Path(folder, "weights.safetensors"))
    down = sum(each["received_bytes"] for each in summaries)
    up = sum(each["sent_bytes"] for each in summaries)
    return row(ours.name, Moved(down, up, rounds), model, time.monotonic() - began_s)


@dataclass(frozen=True)
class Moved:
    """Bytes of all workers over all rounds."""

    down: int
    up: int
    rounds: int


def row(name: str, moved: Moved, model: nn.Module, seconds: float) -> Row:
    found = evaluate(DIGITS, model, torch.device("cpu"))
    assert found.accuracy is not None
    count = WORKERS * moved.rounds
    return {
        "scheme": name,
        "bytes_per_round": round((moved.down + moved.up) / count, 1),
        "bytes_down_per_round": round(moved.down / count, 1),
        "bytes_up_per_round": round(moved.up / count, 1),
        "accuracy_percent": round(100 * found.accuracy, 2),
        "seconds": round(seconds, 1),
    }


SCHEMES = (
    Scheme("none", 1, "none", "none"),
    Scheme("int8", 1, "int8", "none"),
    Scheme("int8, weights bf16", 1, "int8", "bf16"),
    Scheme(f"{STEPS} local steps", STEPS, "none", "none"),
    Scheme(f"{STEPS} local steps, int8, weights bf16", STEPS, "int8", "bf16"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="a multiple of 50")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure_baseline(asked.rounds)]
    rows += [measure_ringleader(ours, asked.rounds) for ours in SCHEMES]
    for each in rows:
        fewer = rows[0]["bytes_per_round"] / each["bytes_per_round"]
        each["times_fewer"] = round(fewer, 2)
        points = each["accuracy_percent"] - rows[0]["accuracy_percent"]
        each["points_from_baseline"] = round(points, 2)
        print(json.dumps(each), flush=True)
    by_name = {each["scheme"]: each for each in rows}
    for name, bar in (("int8", BAR_INT8), (f"{STEPS} local steps", BAR_LOCAL)):
        found = by_name[name]
        is_equal = abs(found["points_from_baseline"]) <= BAR_POINTS
        verdict = "holds" if found["times_fewer"] >= bar and is_equal else "FAILS"
        print(
            f"{name}: {found['times_fewer']}x fewer bytes (bar {bar:g}x), "
            f"{found['points_from_baseline']:+} points: {verdict}"
        )
    if asked.out:
        facts = {"task": "digits", "workers": WORKERS, "rounds": asked.rounds}
        facts |= {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()}
        facts |= {"python": platform.python_version(), "torch": torch.__version__}
        asked.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
