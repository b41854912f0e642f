"""kill -9 of the server: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest

from ringleader.errors import ConfigError, InternalError
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.bodies import Update
from ringleader.paramserver.server.aggregation import Aggregation
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.run import ServerOptions, open_run
from ringleader.paramserver.server.storage import journal
from ringleader.paramserver.server.storage.journal_records import AcceptedUpdate
from ringleader.paramserver.server.training import Training
from ringleader.paramserver.server.update_headers import UpdateHeaders
from ringleader.testing.full_disk import FullDisk
from tests.kit.param_server import (
    MANIFEST,
    RATE,
    RestartingServer,
    WorkerClient,
    expected,
    model,
    server,
    task,
    update_body,
    weights_in,
)

KILLS = 10


class Stubborn(threading.Thread):
    """A worker that repeats every request until it gets a response."""

    def __init__(
        self, client: WorkerClient, acknowledged: list[tuple[int, int]]
    ) -> None:
        super().__init__(name=f"friend {client.nonce[:4]}")
        self.client = client
        self.acknowledged = acknowledged
        self.expires_s = time.monotonic() + 400
        self.repeated = 0

    def run(self) -> None:
        while time.monotonic() < self.expires_s:
            try:
                if not self.client.token:
                    self.client.join()
                if not self.step():
                    return
            except httpx2.TransportError:
                time.sleep(0.02)

    def step(self) -> bool:
        work = self.client.work()
        assert work is not None
        if work["kind"] == "finished":
            self.client.leave()
            return False
        while time.monotonic() < self.expires_s:
            try:
                answer = self.client.put(work)
            except httpx2.TransportError:
                time.sleep(0.02)
                continue
            assert answer.status_code in (200, 409), answer.text
            if answer.status_code == 200 and answer.json()["counted"]:
                self.repeated += "again" in answer.json()
                self.acknowledged.append((work["version"], work["shard"]))
            return True
        return False


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "workers"), [("bulk", 2), ("async", 1)])
def test_a_server_killed_ten_times_ends_with_the_same_weights(
    tmp_path: Path, mode: str, workers: int
) -> None:
    rounds = 60
    chance = random.Random(workers)
    points = sorted(chance.sample(range(1, rounds * workers - 5), KILLS))
    acknowledged: list[tuple[int, int]] = []
    replayed = 0
    with RestartingServer(
        tmp_path, rounds=rounds, workers=workers, mode=mode
    ) as restarting:
        process = restarting.next()
        assert process is not None
        url = f"http://127.0.0.1:{process.port}"
        clients = [
            Stubborn(WorkerClient(url, restarting.code), acknowledged)
            for _ in range(workers)
        ]
        for client in clients:
            client.start()
        for point in points:
            while len(acknowledged) < point:
                time.sleep(0.0005)
                assert any(client.is_alive() for client in clients)
            time.sleep(chance.random() * 0.01)
            os.kill(process.pid, signal.SIGKILL)
            process = restarting.next()
            assert process is not None, "it did not start again"
            replayed += process.replayed
        for client in clients:
            client.join(400)
            client.client.close()
            assert not client.is_alive()
        assert restarting.next() is None
    assert len(set(acknowledged)) == len(acknowledged) == rounds * workers
    assert replayed > 0
    np.testing.assert_allclose(
        weights_in(tmp_path), expected(rounds, workers), atol=1e-4
    )


@pytest.mark.parametrize("mode", ["bulk", "async"])
def test_a_server_killed_after_any_record_resumes(tmp_path: Path, mode: str) -> None:
    """Every counted update of one worker makes a version: also one that was recorded
    when the server died before it could say so.
    """
    rounds = 5
    with server(tmp_path / "whole", rounds=99, mode=mode, every=99) as process:
        with process.clients(1) as (client,):
            for _ in range(rounds):
                client.step()
        path = process.training.store.journal_path
        records = list(journal.read(path))
    for kept in range(len(records) + 1):
        out = tmp_path / str(kept)
        shutil.copytree(tmp_path / "whole", out)
        cut = journal.Journal(out / path.name)
        cut.begin()
        for record, body, _ in records[:kept]:
            cut.append(record, body)
        cut.close()
        updates = sum(type(entry.record) is AcceptedUpdate for entry in records[:kept])
        with server(out, rounds=99, mode=mode, every=99) as process:
            assert process.training.scheduler.version == updates
            weights = MANIFEST.values(process.training.store.weights.model)
        np.testing.assert_allclose(weights, expected(updates, 1), atol=1e-5)


def test_another_rule_after_a_restart_counts_from_the_next_round(
    tmp_path: Path,
) -> None:
    def given(value: float) -> bytes:
        values = np.full(MANIFEST.num_parameters, value, np.float32)
        return bodies.pack_update(
            MANIFEST, Update(values, np.zeros(MANIFEST.num_buffers, np.float32))
        )

    def play(clients: list[WorkerClient], values: tuple[float, ...]) -> None:
        for client, value in zip(clients, values, strict=True):
            work = client.work()
            assert work is not None
            assert client.put(work, given(value)).json()["counted"] is True

    with (
        server(tmp_path, rounds=9, workers=3, every=9) as process,
        process.clients(3) as clients,
    ):
        play(clients[:2], (0.0, 0.5))  # the mean is asked for
        left = clients[2]
    for _ in range(2):  # the second restart replays the change as well
        median = Aggregation("median")
        with server(
            tmp_path, rounds=9, workers=3, every=9, aggregation=median
        ) as process:
            scheduler = process.training.scheduler
            for old in clients:
                old.url = process.url
                old.http = old.client()
                old.work(0.0)
            if not scheduler.version:
                play([left], (2.5,))
                play(clients, (0.0, 0.5, 2.5))
            assert scheduler.version == 2
            weights = MANIFEST.values(process.training.store.weights.model)
            for old in clients:
                old.close()
        want = MANIFEST.values(model()) - RATE * (1.0 + 0.5)
        np.testing.assert_allclose(weights, want, atol=1e-5)


def test_a_run_killed_before_its_last_checkpoint_has_its_final_weights(
    tmp_path: Path,
) -> None:
    with (
        server(tmp_path, rounds=99, every=99) as process,
        process.clients(1) as (client,),
    ):
        for _ in range(5):
            client.step()
    with server(tmp_path, rounds=5, every=99) as process:
        assert process.training.scheduler.is_finished
    np.testing.assert_allclose(weights_in(tmp_path), expected(5, 1), atol=1e-5)


def test_weights_are_published_after_a_crash_before_publishing(
    tmp_path: Path,
) -> None:
    with server(tmp_path, rounds=3) as process, process.clients(1) as (client,):
        while client.step() is not None:
            pass
    (tmp_path / "weights.safetensors").unlink()
    with server(tmp_path, rounds=3):
        pass
    np.testing.assert_allclose(weights_in(tmp_path), expected(3, 1), atol=1e-5)


def test_the_journal_of_a_removed_checkpoint_is_not_replayed(
    tmp_path: Path,
) -> None:
    def live() -> None:
        with server(tmp_path, rounds=99) as process, process.clients(1) as (client,):
            assert process.training.scheduler.version == 0
            for _ in range(4):
                client.step()

    live()
    shutil.rmtree(tmp_path / "checkpoints" / "000003")
    (tmp_path / "journal-000000.log").unlink()  # it leads to version 3 as well
    live()
    with server(tmp_path, rounds=99) as process:
        assert process.training.scheduler.version == 4
        weights = MANIFEST.values(process.training.store.weights.model)
    np.testing.assert_allclose(weights, expected(4, 1), atol=1e-5)


def test_a_join_without_a_nonce_gives_a_new_worker_also_after_a_restart(
    tmp_path: Path,
) -> None:
    with server(tmp_path) as process:
        anna = WorkerClient(process.url, process.code)
        assert anna.join(nonce="").status_code == 200
        anna.close()
    with server(tmp_path) as process:
        ben = WorkerClient(process.url, process.code)
        assert ben.join(nonce="").status_code == 200
        again = WorkerClient(process.url, process.code, token=anna.token)
        assert again.work() is not None, "the token is still good"
        assert ben.worker != anna.worker
        ben.close()
        again.close()


async def _given(training: Training, worker: str) -> UpdateHeaders:
    """Ask for work, and return the headers of the update that it is for."""
    lease = await training.wait_for_work(worker, 0.0)
    assert lease is not None
    return UpdateHeaders(lease.key, 8, 0.5, "none")


def test_nothing_is_acknowledged_after_a_failed_record(tmp_path: Path) -> None:
    plan = Plan(rounds=9, workers=2, scale_rate=False)
    run = open_run(task(), plan, ServerOptions(out=tmp_path))
    training = run.app.training

    async def go() -> None:
        for name in ("anna", "ben"):
            await training.join(name, "cpu", "")
        training.scheduler.workers["w2"].has_asked = True
        told = [await _given(training, worker) for worker in ("w1", "w2")]
        log = training.store._journal
        assert log._file is not None
        log._file = FullDisk(log._file, 100)  # type: ignore[assignment]
        for headers, worker in zip(told, ("w1", "w2"), strict=True):
            body = memoryview(update_body(0, headers.key.shard))
            with pytest.raises(ConfigError, match="No space left"):
                await training.submit(worker, headers, body)
        with pytest.raises(ConfigError, match="No space left"):
            await training.join("carl", "cpu", "")

    asyncio.run(go())
    assert training.failure is not None
    assert not training.scheduler.counted
    run.close()


def test_an_optimizer_that_fails_ends_the_server_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the optimizer has run out of ideas")

    run = open_run(task(), Plan(rounds=9, workers=1), ServerOptions(out=tmp_path))
    training = run.app.training
    monkeypatch.setattr(training.store.weights.optimizer, "step", fail)

    async def go() -> None:
        await training.join("anna", "cpu", "")
        told = await _given(training, "w1")
        async with asyncio.timeout(120):
            with pytest.raises(InternalError, match="run out of ideas"):
                await training.submit("w1", told, memoryview(update_body(0, 0)))

    asyncio.run(go())
    assert isinstance(training.failure, InternalError)
    run.close()
