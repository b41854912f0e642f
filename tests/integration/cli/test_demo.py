"""``ringleader demo`` with real processes, and its training inside one process."""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ringleader.cli.demo.training import (
    TrainingConfig,
    TrainingResult,
    load_digits,
    train,
)
from ringleader.groups.group import Group
from ringleader.testing.threaded_world import world
from tests.kit.base_install import make_base_install
from tests.kit.warm_python import WarmPython

FORKING = ("-m", "tests.kit.warm_children")
"""The ranks are forks; ``make demo`` runs the same with new interpreters."""
DEMO = (*FORKING, "-m", "ringleader.cli.main", "demo")


@pytest.mark.slow
def test_the_demo_learns_and_proves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = warm_python.popen(*DEMO)
    said, _ = demo.communicate(timeout=400)

    assert demo.returncode == 0, said
    reached = re.search(r"digits never seen in training: ([\d.]+)%", said)
    assert reached is not None, said
    assert float(reached[1]) >= 95
    assert "bit-identical on all 3 ranks: yes" in said
    assert "after epoch 15, joined again and continued at step 226 from" in said
    assert "studio had lost its disk" in said
    assert "shared memory" in said
    assert "epoch 30/30" in said


@pytest.mark.slow
def test_chaos_kills_nodes_and_the_loss_does_not_notice(
    warm_python: WarmPython,
) -> None:
    """300 steps of at least 20 ms: the first kill comes 4 s after the first of them."""
    demo = warm_python.popen(*DEMO, "--chaos", "--epochs", "20")
    said, _ = demo.communicate(timeout=580)

    assert demo.returncode == 0, said
    killed = re.search(r"Killed (\d+) nodes with SIGKILL", said)
    assert killed is not None, said
    assert int(killed[1]) >= 1
    assert "The run has 300 steps, as the uninterrupted one" in said
    assert "starting 3 nodes, which look for each other: 0 ready" in said
    assert re.search(r"step \d+ of 300: loss .*, about \d+ s left", said), said


def test_the_first_command_of_a_new_user_works_in_the_base_install(
    tmp_path: Path,
) -> None:
    """Was: "scikit-learn is not installed". ``torch.py`` is not torch, either."""
    (tmp_path / "torch.py").write_text("raise SystemExit('not torch')")
    commands = make_base_install(tmp_path / "installed")
    demo = subprocess.run(
        [commands / "python", "-c", "import sklearn"], capture_output=True, check=False
    )
    assert b"No module named 'sklearn'" in demo.stderr, "it has only what it requires"

    line = ["-P", "-m", "ringleader", "demo", "--ranks", "2", "--epochs", "2", "--json"]
    demo = subprocess.run(
        [commands / "python", *line],
        cwd=tmp_path,
        capture_output=True,
        timeout=500,
        check=False,
    )
    said = demo.stderr.decode()

    assert demo.returncode == 0, said
    phases = ["importing torch", "starting the nodes", "epoch 2/2", "once more in a"]
    assert sorted(phases, key=said.index) == phases, said
    story = json.loads(demo.stdout)
    assert (story["ranks"], story["epochs"], story["troubles"]) == (2, 2, [])
    assert len(set(story["digests"])) == 1
    assert story["largest_difference"] <= 1e-5
    assert (story["resumed_after"], story["resumed_step"]) == (1, 15)


@pytest.mark.slow
def test_a_killed_rank_ends_the_demo_with_its_name(warm_python: WarmPython) -> None:
    demo = warm_python.popen(*DEMO, "--ranks", "2", "--epochs", "1000000")
    try:
        next(line for line in demo.stdout if "epoch 1/" in line)
        family = psutil.Process(demo.pid).children(recursive=True)
        [victim] = [p for p in family if p.cmdline()[-2:] == ["--rank", "1"]]
        victim.kill()

        assert demo.wait(timeout=100) == 1
        said = demo.stdout.read()
    finally:
        demo.kill()  # does nothing to a demo that has ended
        demo.communicate()
    assert "demo rank 1" in said
    assert "SIGKILL" in said
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_in_one_process_end_with_the_parameters_of_a_run_alone(size: int) -> None:
    config = TrainingConfig(epochs=2)
    digits = load_digits(config)

    def run(group: Group) -> TrainingResult:
        return train(config, digits, group, lambda epoch, loss: None)

    with world(size) as groups, ThreadPoolExecutor(size) as threads:
        trained = list(threads.map(run, groups))
    alone = train(config, digits, None, lambda epoch, loss: None)

    assert len({each.digest() for each in trained}) == 1
    assert float((trained[0].parameters - alone.parameters).abs().max()) <= 1e-5
    assert trained[0].loss == pytest.approx(alone.loss, abs=1e-5)


def test_the_loss_is_told_after_every_epoch_and_falls() -> None:
    config = TrainingConfig(epochs=3)
    told: list[tuple[int, float]] = []

    train(config, load_digits(config), None, lambda *epoch: told.append(epoch))

    assert [epoch for epoch, _ in told] == [1, 2, 3]
    assert told[2][1] < told[0][1]
