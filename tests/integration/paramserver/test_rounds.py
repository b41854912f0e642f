"""Rounds mode with a real server: values, late updates, restarts, killed workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ringleader.paramserver.evaluation import evaluate, load_model
from ringleader.paramserver.tasks.loading import load_task
from ringleader.rounds.round_length import late_weight
from ringleader.transport.free_ports import free_ports
from tests.kit.commands import Run, link_file, output_of
from tests.kit.param_server import (
    MANIFEST,
    WorkerClient,
    gradient,
    model,
    server,
    update_body,
    weights_in,
)

Floats = NDArray[np.float64]


class Reference:
    """The outer step of DiLoCo in float64."""

    def __init__(self) -> None:
        self.weights: Floats = MANIFEST.values(model()).astype(np.float64)
        self._velocity = np.zeros_like(self.weights)

    def close(self, *updates: tuple[int, int, float]) -> None:
        """Apply the updates of (version, shard), each with a weight."""
        parts = [gradient(v, s).astype(np.float64) for v, s, _ in updates]
        mean = -np.average(parts, axis=0, weights=[n for *_, n in updates])
        self._velocity = 0.9 * self._velocity + mean
        self.weights = self.weights - 0.7 * (mean + 0.9 * self._velocity)


def send(client: WorkerClient, work: dict[str, Any], samples: int) -> httpx2.Response:
    return client.put(work, X_Samples=str(samples))


def work_of(client: WorkerClient) -> dict[str, Any]:
    work = client.work()
    assert work is not None
    return work


PLAN: dict[str, Any] = {
    "mode": "rounds",
    "steps": 5,
    "rounds": 3,
    "workers": 2,
    "grace_s": 500.0,
}


def test_rounds_have_the_values_of_a_float64_run_also_across_a_restart(
    tmp_path: Path,
) -> None:
    """Two workers with unlike samples, one update that is late, a server that ends."""
    reference = Reference()
    with server(tmp_path, **PLAN) as first, first.clients(2) as (fast, slow):
        own, other = work_of(fast), work_of(slow)
        assert sorted([own["first_batch"], other["first_batch"]]) == [0, 5]
        assert send(fast, own, 96).json() == {"counted": True, "version": 0}
        assert send(slow, other, 40).json() == {"counted": True, "version": 1}
        assert send(slow, other, 40).json()["again"]
        reference.close((0, 0, 96), (0, 1, 40))
        late = work_of(slow)
        assert send(fast, work_of(fast), 10).status_code == 200
        scheduler = first.training.scheduler
        scheduler.plan = replace(scheduler.plan, grace_s=0.0)
        work = work_of(fast)  # after the grace; the other one is late now
        assert work["version"] == 2
        reference.close((1, 0, 10))
        samples = 32 * late["steps"]
        assert send(slow, late, samples).json() == {"counted": True, "version": 2}
        kept = fast.token
    with server(tmp_path, **{**PLAN, "grace_s": 0.0}) as second:
        assert second.run.replayed == 4
        client = WorkerClient(second.url, second.code, token=kept)
        assert client.step() == work  # the lease is in the journal
        assert client.step() is None
        client.close()
    reference.close((1, 1, samples * late_weight(1)), (2, 0, 8))
    assert np.abs(weights_in(tmp_path) - reference.weights).max() < 1e-5


def test_samples_are_bounded_by_the_lease_and_codecs_are_checked(
    tmp_path: Path,
) -> None:
    plan: dict[str, Any] = {"mode": "rounds", "steps": 2, "rounds": 9}
    with server(tmp_path, **plan) as serving, serving.clients(1) as clients:
        client, work = clients[0], work_of(clients[0])
        refused = send(client, work, 2 * 32 + 1)
        assert refused.status_code == 400, refused.text
        assert "X-Samples is above 64" in refused.text
        body = update_body(0, 0, "sparseloco")
        assert len(body) < 4 * MANIFEST.num_parameters / 10
        broken = bytes(reversed(body))
        assert client.put(work, broken, X_Codec="sparseloco").status_code == 422
        work = work_of(client)
        assert client.put(work, body, X_Codec="sparseloco").json()["counted"]
        answer = client.join()
        assert (answer.json()["steps"], answer.json()["codec"]) == (16, "int8")


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 300
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def status_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(
        f"{url}/v1/status", trust_env=False, timeout=60
    ).json()
    return found


def is_busy(url: str, name: str) -> bool:
    workers = status_of(url)["workers"]
    return any(w["name"] == name and w["state"] == "computing" for w in workers)


class SlowConnection(socketserver.BaseRequestHandler):
    """Passes everything on, half a second late on the way to the server."""

    server: SlowProxy

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.behind), 30) as behind:
            back = threading.Thread(target=self._pump, args=(behind, self.request))
            back.start()
            self._pump(self.request, behind, late_s=0.5)
            back.join()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, late_s: float = 0) -> None:
        with suppress(OSError):
            while block := source.recv(65536):
                time.sleep(late_s)
                target.sendall(block)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


class SlowProxy(socketserver.ThreadingTCPServer):
    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), SlowConnection)
        self.behind = behind


@pytest.mark.slow
def test_the_steps_of_a_round_follow_from_measured_times(
    tmp_path: Path, running: Run
) -> None:
    """Exchanges take a second, a hundred times as long as a step: rounds get longer."""
    flags = ["digits", "--mode", "rounds", "--workers", "1", "--rounds", "3", "--http"]
    flags += ["--steps", "auto", "--port", "0", "--out", str(tmp_path)]
    with running("serve", *flags) as serving:
        url, _, code = link_file(serving, tmp_path).read_text().strip().partition("/#")
        with SlowProxy(int(url.rpartition(":")[2])) as proxy:
            threading.Thread(target=proxy.serve_forever).start()
            link = f"http://127.0.0.1:{proxy.server_address[1]}/#{code}"
            try:
                with running("work", link, "--json") as worker:
                    said = output_of(worker)
            finally:
                proxy.shutdown()
        output_of(serving)
    facts = json.loads(said[said.index("{") : said.rindex("}") + 1])
    num_steps = facts["samples"] / load_task("digits").batch_size
    assert 3 * 50 < num_steps <= 50 + 100 + 200, "how much longer, times decide"


FLAGS = ["digits", "--mode", "rounds", "--workers", "3", "--rounds", "20", "--http"]
FLAGS += ["--steps", "12", "--grace", "0.5", "--checkpoint-every", "4", "--port"]


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_server_cost_time_only(
    tmp_path: Path, running: Run
) -> None:
    """kill -9 of a worker in mid-round, then of the server; the digits are learned."""
    out = tmp_path / "run"
    port = str(free_ports(1)[0])
    with ExitStack() as stack:
        first = stack.enter_context(running("serve", *FLAGS, port, "--out", out))
        link = link_file(first, out)
        url = link.read_text().partition("/#")[0].strip()
        ada, bob, eve = (
            stack.enter_context(running("work", "--server-file", link, "--name", name))
            for name in ("ada", "bob", "eve")
        )
        wait_until(lambda: status_of(url)["version"] >= 2, "no round ends")
        wait_until(lambda: is_busy(url, "eve"), "eve has nothing to do")
        os.kill(eve.pid, signal.SIGKILL)
        at = status_of(url)["version"]
        wait_until(lambda: status_of(url)["version"] >= at + 2, "eve is waited for")
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        second = stack.enter_context(running("serve", *FLAGS, port, "--out", out))
        for process in (second, ada, bob):
            output_of(process)
    task = load_task("digits")
    trained = load_model(task, out / "weights.safetensors")
    found = evaluate(task, trained, torch.device("cpu"))
    assert found.accuracy is not None
    assert found.accuracy > 0.9, found.accuracy
