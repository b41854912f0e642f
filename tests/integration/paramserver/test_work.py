"""``ringleader serve``, ``work`` and ``evaluate``, each a process as users run them."""

from __future__ import annotations

import json
import re
import signal
import statistics
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from ringleader.cli.evaluate import evaluate
from ringleader.identity.secret_value import Secret
from ringleader.identity.storage.private_file import write_private
from ringleader.paramserver.evaluation import load_model
from ringleader.paramserver.protocol import bodies
from ringleader.paramserver.protocol.manifest import Manifest
from ringleader.paramserver.server.plan import Plan
from ringleader.paramserver.server.storage.checkpoint import WEIGHTS, find_all
from ringleader.paramserver.tasks.batch_order import batch_indices
from ringleader.paramserver.tasks.loading import load_task
from tests.kit.commands import Run, link_file, output_of
from tests.kit.param_server import WorkerClient, server


@pytest.mark.slow
def test_the_wrong_scheme_is_named_with_the_right_address(
    running: Run, tmp_path: Path
) -> None:
    with (
        server(tmp_path / "tls", tls=True) as secure,
        server(tmp_path / "plain") as plain,
        running("work", secure.url.replace("https:", "http:")) as to_secure,
        running("work", plain.url.replace("http:", "https:")) as to_plain,
    ):
        said, _ = to_secure.communicate(timeout=300)
        assert to_secure.returncode == 2, said
        assert f"this server speaks HTTPS; use {secure.url}" in said
        said, _ = to_plain.communicate(timeout=300)
        assert to_plain.returncode == 2, said
        assert f"this server speaks plain HTTP; use {plain.url}" in said


def alone(rounds: int, shards: int) -> dict[str, torch.Tensor]:
    """Compute the weights of one process that trains on the same batches."""
    task = load_task("digits")
    model, samples, plan = (
        task.model(),
        task.samples("train"),
        Plan(rounds=rounds, workers=shards),
    )
    optimizer = task.optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    for version in range(rounds):
        numbers = range(version * shards, (version + 1) * shards)
        chosen = [batch_indices(0, b, task.batch_size, len(samples)) for b in numbers]
        optimizer.zero_grad()
        task.loss(model, samples.batch(torch.cat(chosen))).backward()  # type: ignore[no-untyped-call]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * plan.rate_factor(version, shards)
        optimizer.step()
    return model.state_dict()


def difference(out: Path, expected: dict[str, torch.Tensor]) -> float:
    """Return the distance of the weights in ``out`` from those of one process."""
    found = load_model(load_task("digits"), out / "weights.safetensors").state_dict()
    return max(float((found[n] - expected[n]).abs().max()) for n in expected)


def status_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(
        f"{url}/v1/status", trust_env=False, timeout=60
    ).json()
    return found


def version_of(url: str) -> int:
    found = status_of(url)["version"]
    assert isinstance(found, int)
    return found


def reach(url: str, version: int) -> None:
    """Wait until the server responds."""
    deadline_s = time.monotonic() + 300
    while version_of(url) < version:
        assert time.monotonic() < deadline_s, f"stuck at version {version_of(url)}"
        time.sleep(0.02)


@pytest.mark.slow
def test_two_workers_reach_96_percent_and_the_weights_of_a_single_run(
    tmp_path: Path, running: Run
) -> None:
    serve = ("digits", "--workers", "2", "--rounds", "60", "--port", "0")
    with ExitStack() as stack:
        server = stack.enter_context(running("serve", *serve, "--out", tmp_path))
        link = link_file(server, tmp_path)
        flags = ("--server-file", link, "--threads", "1")
        workers = [stack.enter_context(running("work", *flags)) for _ in range(2)]
        said = [output_of(process) for process in (*workers, server)]
    with running("evaluate", "digits", "--weights", tmp_path) as evaluation:
        tested = output_of(evaluation)

    # 60 each, unless one was so late that the other one computed its part.
    counts = [re.search(r"(\d+) updates", text) for text in said[:2]]
    assert sum(int(found[1]) for found in counts if found) == 120, said
    assert "120 updates of 2 workers" in said[2]
    accuracy = re.search(r"^accuracy ([\d.]+) %$", tested, re.MULTILINE)
    assert accuracy is not None, tested
    assert float(accuracy[1]) >= 96
    assert difference(tmp_path, alone(60, 2)) <= 1e-5
    assert (tmp_path / "evaluation.png").stat().st_size > 1000
    exported = torch.load(tmp_path / "trained_model.pth", weights_only=True)
    assert exported.keys() == load_task("digits").model().state_dict().keys()


class Attacker(threading.Thread):
    """Does all that is asked of a worker, but pulls all weights to zero and beyond."""

    PULL = 10.0
    """Below every limit of norms, and above all gradients together."""

    def __init__(self, url: str, vanishes_after: int = 1000) -> None:
        """``vanishes_after`` so many updates it takes a shard and is never heard of."""
        super().__init__(name="attacker", daemon=True)
        self._vanishes_after = vanishes_after
        self._task = load_task("digits")
        self._manifest = Manifest.of(self._task.model())
        self._client = WorkerClient(url, "")
        self.counted = 0

    def run(self) -> None:
        client = self._client
        fingerprint = self._task.fingerprint()
        with suppress(httpx2.TransportError):
            assert client.join(task=fingerprint).status_code == 200
            while (work := client.work()) is None or work["kind"] == "step":
                if work is not None:
                    if self.counted >= self._vanishes_after:
                        client.close()
                        return
                    path = f"/v1/weights/{work['version']}"
                    got = client.http.get(path, headers=client.headers)
                    if got.status_code == 200:
                        answer = client.put(work, self._poison(got.content))
                        self.counted += answer.json().get("counted", False)
            client.http.post("/v1/leave", headers=client.headers, json={})
        client.close()

    def _poison(self, weights: bytes) -> bytes:
        manifest = self._manifest
        pull = self.PULL * manifest.gather(bodies.read_weights(manifest, weights))
        rest = np.zeros(manifest.num_buffers, np.float32)
        return bodies.pack_update(manifest, bodies.Update(pull, rest))


def accuracy_of(weights: Path) -> float:
    task = load_task("digits")
    model = load_model(task, weights)
    images, labels = task.samples("test").batch(torch.arange(360))
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).double().mean())


def usual_accuracy(out: Path) -> float:
    """Return the median over the last checkpoints.

    Single versions differ: of two honest values the median is always the one that is
    nearer to the attacker's, and which digits the two have seen depends on who asks
    first. Twelve simulations of these rounds, each with three votes and without any
    server, had 70 to 98 % at single versions, and 93 to 97 % as the median of five;
    with the mean that was 59 to 68 %.
    """
    return statistics.median(
        accuracy_of(found.path / WEIGHTS) for found in find_all(out)
    )


@pytest.mark.slow
def test_an_attacker_ruins_the_mean_and_fails_against_robust_rules(
    tmp_path: Path, running: Run
) -> None:
    """Nor does it hold up a robust round by vanishing with a shard: the next worker to
    come gets that."""
    accuracy = {}
    for rule, vanishes_after in (("mean", 1000), ("median", 10)):
        out = tmp_path / rule
        serve = ("digits", "--workers", "3", "--rounds", "60", "--port", "0")
        flags = ("--open", "--http", "--aggregate", rule, "--checkpoint-every", "4")
        with ExitStack() as stack:
            server = stack.enter_context(running("serve", *serve, *flags, "--out", out))
            url = link_file(server, out).read_text()
            attacker = Attacker(url, vanishes_after)
            attacker.start()
            honest = [
                stack.enter_context(running("work", url, "--threads", "1"))
                for _ in range(2)
            ]
            if rule == "median":
                attacker.join(300)
                assert status_of(url)["version"] < 60
                attacker = Attacker(url)
                attacker.start()
            for process in (*honest, server):
                output_of(process)
            attacker.join(300)
        assert not attacker.is_alive()
        assert attacker.counted >= 10
        accuracy[rule] = usual_accuracy(out)
    assert accuracy["median"] >= 0.85, accuracy
    assert accuracy["mean"] < accuracy["median"] - 0.1, accuracy


@pytest.mark.slow
def test_a_killed_worker_and_an_interrupted_one_cost_time_and_nothing_else(
    tmp_path: Path, running: Run
) -> None:
    serve = ("digits", "--workers", "3", "--rounds", "60", "--port", "0", "--open")
    with ExitStack() as stack:
        server = stack.enter_context(
            running("serve", *serve, "--http", "--out", tmp_path)
        )
        url = link_file(server, tmp_path).read_text()
        stays, dies, leaves = (
            stack.enter_context(running("work", url, "--threads", "1", "--name", name))
            for name in ("stays", "dies", "leaves")
        )
        reach(url, 3)  # the first round waits for all three
        dies.send_signal(signal.SIGKILL)
        reach(url, 6)
        leaves.send_signal(signal.SIGINT)
        said, _ = leaves.communicate(timeout=300)
        status = status_of(url)
        output_of(stays)
        reach(url, 60)  # the server itself stays a while, for the one that died

    assert leaves.returncode == 130
    assert re.search(r"^Left at version \d+ of 60.*: \d+ updates, ", said, re.MULTILINE)
    states = {worker["name"]: worker["state"] for worker in status["workers"]}
    assert states["leaves"] == "left"
    assert difference(tmp_path, alone(60, 3)) <= 1e-5


def test_an_open_server_says_how_it_is_joined(tmp_path: Path, running: Run) -> None:
    """The certificate is self-signed, so the link must contain the fingerprint."""
    serve = ("digits", "--workers", "1", "--rounds", "2", "--port", "0", "--open")
    with ExitStack() as stack:
        server = stack.enter_context(running("serve", *serve, "--out", tmp_path))
        link = link_file(server, tmp_path).read_text()
        worker = stack.enter_context(running("work", link, "--threads", "1"))
        assert "2 updates" in output_of(worker)
        assert link in output_of(server)


def test_a_pin_is_enough_with_a_self_signed_certificate(
    tmp_path: Path, running: Run
) -> None:
    file = tmp_path / "pin"
    write_private(file, Secret(b"4711\n"))
    serve = ("digits", "--workers", "1", "--rounds", "2", "--port", "0", "--pin-file")
    with ExitStack() as stack:
        server = stack.enter_context(
            running("serve", *serve, file, "--host", "127.0.0.1", "--out", tmp_path)
        )
        url = link_file(server, tmp_path).read_text().partition("/#")[0]
        assert url.startswith("https://127.0.0.1:")
        wrong = stack.enter_context(running("work", url, "--pin", "4712"))
        said, _ = wrong.communicate(timeout=300)
        assert wrong.returncode != 0
        assert "the PIN is wrong, or another computer intercepts" in said
        assert "Traceback" not in said
        assert "other users can see the PIN in the process list" in said
        worker = stack.enter_context(running("work", url, "--pin-file", file))
        assert "2 updates" in output_of(worker)
        said = output_of(server)
    assert f"or with: ringleader work {url} --pin -" in said
    assert "4711" not in said


def test_a_link_that_no_worker_would_take_is_not_printed(
    tmp_path: Path, running: Run
) -> None:
    serve = ("digits", "--workers", "1", "--rounds", "2", "--port", "0")
    with running("serve", *serve, "--url", "http://h:1", "--out", tmp_path) as server:
        said, _ = server.communicate(timeout=300)
    assert server.returncode == 2
    assert "--url http://h:1: the link is for https" in said


@pytest.mark.slow
def test_commands_without_a_terminal_name_the_missing_argument(running: Run) -> None:
    for flags, complaint in (
        (["work"], "LINK is missing"),
        (["work", "ftp://x"], "not the address of a server"),
        (["work", "https://x/#rubbish"], "the link is incomplete"),
        (["evaluate"], "TASK is missing"),
        (["evaluate", "digits"], "--weights is missing"),
    ):
        with running(*flags) as process:
            said, _ = process.communicate(timeout=300)
        assert process.returncode == 2, said
        assert complaint in said
        assert "Traceback" not in said


def test_evaluate_answers_in_json(tmp_path: Path) -> None:
    task = load_task("digits")
    model = task.model()
    found = Manifest.of(model)
    (tmp_path / "weights.safetensors").write_bytes(
        bodies.pack_weights(found, found.tensors(model))
    )
    app = typer.Typer()
    app.command()(evaluate)
    done = CliRunner().invoke(app, ["digits", "--weights", str(tmp_path), "--json"])

    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    images, labels = task.samples("test").batch(torch.arange(360))
    with torch.no_grad():
        guesses = model(images).argmax(dim=1)
    assert facts["accuracy"] == float((guesses == labels).double().mean())
    assert sum(map(sum, facts["confusion"])) == facts["samples"] == 360
    for true, row in enumerate(facts["confusion"]):
        assert sum(row) == int((labels == true).sum())
    assert facts["loss"] == pytest.approx(2.3, abs=0.3)


@pytest.mark.slow
def test_workers_get_mnist_from_the_machine_that_has_it(
    tmp_path: Path, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 and 10,000 images, which only the server has; a second worker on the same
    machine uses the copy of the first."""
    raw = tmp_path / "server" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    chance = np.random.default_rng(0)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        labels = chance.integers(0, 10, count, dtype=np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), labels, :] = 255  # a line as high as the digit
        for kind, head, data in (
            ("images-idx3", [2051, count, 28, 28], images),
            ("labels-idx1", [2049, count], labels),
        ):
            content = np.array(head, ">u4").tobytes() + data.tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(content)
    out, cache = tmp_path / "out", tmp_path / "worker-cache"
    serve = (f"mnist:{tmp_path / 'server'}", "--workers", "2", "--rounds", "5")
    with ExitStack() as stack:
        where = ("--port", "0", "--out", out)
        server = stack.enter_context(running("serve", *serve, *where))
        link = link_file(server, out)
        monkeypatch.setenv("RINGLEADER_CACHE", str(cache))
        flags = ("--server-file", link, "--threads", "1")
        workers = [stack.enter_context(running("work", *flags)) for _ in range(2)]
        said = [output_of(process) for process in (*workers, server)]
    assert all("task mnist" in text for text in said[:2]), said
    fetched = [text for text in said[:2] if "bytes of data from the server" in text]
    assert len(fetched) == 1, said
    (copy,) = [path for path in (cache / "files").iterdir() if path.is_dir()]
    for path in raw.iterdir():
        assert (copy / path.name).read_bytes() == path.read_bytes()
    assert "10 updates of 2 workers" in said[2]
