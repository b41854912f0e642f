"""Every script of ``examples/``; one as its first reader runs it: under torchrun.

The others run in warm processes with the environment that torchrun sets: a fresh rank
spends five seconds on imports and one on learning.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.kit.scenario_worlds import ScenarioCall, ScenarioServer, one_shot
from tests.kit.warm_python import WarmPython

HERE = Path(__file__).parent


EXAMPLES = HERE.parents[1] / "examples"
FIRST = "ddp.py"
SCRIPTS = {"fsdp2.py", "dtensor.py", "pipeline.py"}
RESUMING = "checkpoint.py"
CALLING = "rpc.py"
MODULES = {"digits.py", "chargpt_model.py"}
ELASTIC = "elastic.py"
LARGE = {"chargpt.py"}
"""Has tests of its own."""

WITHIN_S = 400.0
"""Under torchrun it takes 6 to 10 s on two quiet cores, mostly the import of torch."""
TIMEOUT_S = 60.0

MIN_ACCURACY = 90.0
"""Guessing reaches 10, training 95."""

# Whatever started this test must not speak through us.
_FOREIGN = ("RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def torchrun(size: int, script: str, *arguments: object) -> str:
    """Return the output of an example; fail the test if it fails or takes too long."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(size), str(EXAMPLES / script)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        try:
            output, errors = launcher.communicate(timeout=WITHIN_S)
        finally:
            if launcher.poll() is None:
                _kill(psutil.Process(launcher.pid))
    assert launcher.returncode == 0, f"{output}\n{errors}"
    return output


def _kill(launcher: psutil.Process) -> None:
    """Also its ranks: they would outlive it."""
    for process in [*launcher.children(recursive=True), launcher]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def warm(
    scenario_server: ScenarioServer, size: int, script: str, *arguments: object
) -> str:
    """The same without launcher and imports."""
    args = (str(EXAMPLES / script), *map(str, arguments))
    call = ScenarioCall(
        module="tests.torch.scenario_examples",
        name="run_script",
        args=args,
        limit_s=WITHIN_S - 5,  # the stacks come before we stop waiting
    )
    with one_shot(scenario_server, size, call, TIMEOUT_S, "script") as ranks:
        for rank in ranks:
            report = rank.report(WITHIN_S)
            assert report.kind == "done", report.trace
        for rank in ranks:
            assert rank.has_ended(TIMEOUT_S), f"hangs at exit:\n{rank.written()}"
            assert scenario_server.reap(rank) == 0, rank.written()
        # All of it: torch 2.15's triton writes much at the exit of a fork, and its last
        # line has no end.
        return "\n".join(rank.log.read_text(errors="replace") for rank in ranks)


def losses(output: str) -> list[tuple[int, float]]:
    found = re.findall(r"^epoch (\d+): loss ([\d.]+)$", output, re.MULTILINE)
    return [(int(epoch), float(loss)) for epoch, loss in found]


def number(pattern: str, output: str) -> float:
    found = re.findall(pattern, output, re.MULTILINE)
    assert len(found) == 1, f"rank 0 says it, and once:\n{output}"
    return float(found[0])


@pytest.mark.slow
def test_the_first_example_learns_to_read_digits_under_torchrun() -> None:
    check_that_it_learned(torchrun(2, FIRST))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("fsdp2.py", marks=pytest.mark.slow),
        pytest.param("dtensor.py", marks=pytest.mark.slow),
        pytest.param("pipeline.py", marks=pytest.mark.slow),
    ],
)
def test_an_example_learns_to_read_digits(
    scenario_server: ScenarioServer, script: str
) -> None:
    check_that_it_learned(warm(scenario_server, 2, script))


def check_that_it_learned(output: str) -> None:
    assert number(r"^accuracy ([\d.]+)%$", output) >= MIN_ACCURACY
    epochs = losses(output)
    assert [epoch for epoch, _ in epochs] == list(range(1, len(epochs) + 1))
    assert epochs[-1][1] < epochs[0][1] / 2


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_goes_on_with_three(
    scenario_server: ScenarioServer, tmp_path: Path
) -> None:
    before, after = (warm(scenario_server, size, RESUMING, tmp_path) for size in (2, 3))

    first = losses(before)
    told = number(r"^resumed from .*: loss ([\d.]+)$", after)
    # Three ranks add in another order, and both are printed with four digits.
    assert told == pytest.approx(first[-1][1], abs=2e-4)
    assert number(r"^new model: loss ([\d.]+)$", before) > 2 * told
    second = losses(after)
    assert [epoch for epoch, _ in first + second] == list(range(1, 9))
    assert second[0][1] < told
    assert number(r"^accuracy ([\d.]+)%$", after) >= MIN_ACCURACY


@pytest.mark.slow
def test_workers_train_by_calls_to_a_parameter_server(
    scenario_server: ScenarioServer,
) -> None:
    output = warm(scenario_server, 3, CALLING)
    assert number(r"^accuracy ([\d.]+)%$", output) >= MIN_ACCURACY


def test_every_example_is_run_and_explained() -> None:
    there = {path.name for path in EXAMPLES.glob("*.py")}
    assert there == SCRIPTS | {FIRST, RESUMING, CALLING, ELASTIC} | MODULES | LARGE
    text = (EXAMPLES / "README.md").read_text()
    missing = [name for name in there if f"examples/{name}" not in text]
    assert missing == [], "examples/README.md gives the command of each"


@pytest.mark.parametrize("script", sorted({*SCRIPTS, FIRST, RESUMING}))
def test_an_example_differs_from_gloo_by_a_name_only(script: str) -> None:
    """The backend needs no import; ddp.py has one for its checkpoints."""
    tree = ast.parse((EXAMPLES / script).read_text())
    nodes = list(ast.walk(tree))
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    ours = [node for node in imports if "ringleader" in ast.unparse(node)]
    assert len(ours) == (script == "ddp.py")
    used = {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute)}
    of_ours = {name.split(".")[1] for name in used if name.startswith("ringleader.")}
    assert of_ours <= {"checkpoint", "resume"}
    words = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert words.count("ringleader") == 1


@pytest.mark.slow
def test_the_elastic_example_trains_alone_without_a_cluster(
    warm_python: WarmPython,
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    words = (EXAMPLES / ELASTIC, "--width", "16", "--layers", "1")
    process = warm_python.popen(*words, env=env)
    said, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, said
    assert "finished after 18 steps" in said
