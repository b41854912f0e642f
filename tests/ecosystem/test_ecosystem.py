"""Each library trains on two ranks, on ours and on Gloo, with equal results.

The programs are in programs/; docs/ecosystem.md lists the line that each library needs.
A program runs in up to four ways, always with two real processes:

- gloo: as it is; the reference.
- switch: as it is, with RINGLEADER_DEFAULT=1.
- first: the program makes a group before the library looks for one.
- named: the library is told "ringleader", if it accepts names that it does not know.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)

PROGRAMS = Path(__file__).parent / "programs"
WITHIN_S = 280.0
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@dataclass(frozen=True)
class Program:
    """A program, and the ways in which it can be given our backend."""

    name: str
    arguments: tuple[str, ...] = ()
    takes_backend: bool = False
    """Its last argument is the backend for the library; empty: the library's choice."""
    needs: str = "lightning"
    start: tuple[str, ...] = tuple(TORCHRUN)

    @property
    def id(self) -> str:
        return "-".join((self.name, *self.arguments))

    def command(self, backend: str) -> list[str]:
        given = [backend] if self.takes_backend else []
        path = str(PROGRAMS / f"{self.name}.py")
        return [sys.executable, *self.start, path, *self.arguments, *given]


@dataclass(frozen=True)
class Ended:
    """The end of a program: its status, what it printed, what each rank found."""

    code: int
    output: str
    found: list[dict[str, Any]]

    def results(self) -> list[dict[str, Any]]:
        assert self.code == 0, self.output
        assert len(self.found) == 2, self.output
        ours = ("backend", "group")
        return [{k: v for k, v in f.items() if k not in ours} for f in self.found]

    def groups(self) -> set[str]:
        return {found["group"] for found in self.found}


DDP = Program("accelerate_ddp")
TRAINERS = [Program("trainer", (kind,), True) for kind in ("ddp", "lora", "fsdp")]
LIGHTNING = Program("lightning_ddp", takes_backend=True)
FABRIC = Program("fabric_ddp", takes_backend=True)
METRICS = Program("metrics", takes_backend=True)
IGNITE = Program("ignite_parallel")
DEEPSPEED = Program("deepspeed_zero", takes_backend=True, needs="deepspeed")
RAY = Program("ray_train", takes_backend=True, needs="ray", start=())
SENTENCES = Program("sentence_encoder", takes_backend=True)
TRL = Program("trl_sft", takes_backend=True)

UNCHANGED = [DDP, Program("accelerate_fsdp2"), *TRAINERS, LIGHTNING, FABRIC, METRICS]
UNCHANGED += [IGNITE, DEEPSPEED, RAY, SENTENCES, TRL]
REFUSING = [DDP, TRAINERS[0]]
NAMED = [LIGHTNING, FABRIC, METRICS, DEEPSPEED, RAY]


def run(program: Program, backend: str = "", **variables: str) -> Ended:
    """Run a program to its end."""
    with TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "DS_ACCELERATOR": "cpu",
            "ECOSYSTEM_OUT": folder,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TOKENIZERS_PARALLELISM": "false",
            **variables,
        }
        with subprocess.Popen(
            program.command(backend),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=WITHIN_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        paths = sorted(Path(folder).glob("rank*.json"))
        found = [json.loads(path.read_text()) for path in paths]
    return Ended(process.returncode, output, found)


@lru_cache
def on_gloo(program: Program) -> Ended:
    ended = run(program)
    assert ended.groups() == {"ProcessGroup"}, ended.output
    return ended


def require(program: Program) -> None:
    if not find_spec(program.needs):
        pytest.skip(f"{program.needs} could not be installed here")


@pytest.mark.parametrize("program", UNCHANGED, ids=lambda p: p.id)
def test_unchanged_it_trains_on_ours_as_on_gloo(program: Program) -> None:
    require(program)
    ended = run(program, RINGLEADER_DEFAULT="1")
    assert ended.results() == on_gloo(program).results()
    assert ended.groups() == {"RingleaderGroup"}
    assert "(RINGLEADER_DEFAULT=1)" in ended.output


@pytest.mark.parametrize("program", NAMED, ids=lambda p: p.id)
def test_told_our_name_it_trains_as_on_gloo(program: Program) -> None:
    require(program)
    ended = run(program, "ringleader")
    assert ended.results() == on_gloo(program).results()
    assert [found["backend"] for found in ended.found] == ["ringleader"] * 2


@pytest.mark.parametrize("program", REFUSING, ids=lambda p: p.id)
def test_with_a_group_made_first_it_trains_as_on_gloo(program: Program) -> None:
    ended = run(program, ECOSYSTEM_GROUP_FIRST="1")
    assert ended.results() == on_gloo(program).results()
    assert [found["backend"] for found in ended.found] == ["ringleader"] * 2


def test_gloo_asked_for_by_name_is_ours() -> None:
    ended = run(TRAINERS[0], "gloo", RINGLEADER_DEFAULT="1")
    assert ended.results() == on_gloo(TRAINERS[0]).results()
    assert ended.groups() == {"RingleaderGroup"}


def test_accelerate_still_refuses_our_name() -> None:
    """When this fails, docs/ecosystem.md can say that the name works."""
    ended = run(TRAINERS[0], "ringleader")
    assert ended.code != 0
    assert "Your assigned backend ringleader is not available" in ended.output


def test_ignite_trains_apart_in_a_group_whose_name_it_does_not_know() -> None:
    """When this fails, docs/ecosystem.md need not warn of it."""
    ended = run(IGNITE, ECOSYSTEM_GROUP_FIRST="1")
    first, second = ended.results()
    assert first["weights"] != second["weights"]


def test_trainer_and_lightning_do_shard_and_average() -> None:
    """The comparisons above would also hold if both sides did nothing."""
    for program in (TRAINERS[2], Program("accelerate_fsdp2")):
        assert {str(f["kinds"]) for f in on_gloo(program).found} == {"['DTensor']"}
    first, second = on_gloo(LIGHTNING).found
    assert first["logged"] == second["logged"]


@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_libraries_that_replace_samplers_leave_our_shards_alone(library: str) -> None:
    ended = run(Program("sharded", (library,)), RINGLEADER_DEFAULT="1")
    seen = [index for found in ended.results() for index in found["seen"]]
    assert sorted(seen) == list(range(61))


def test_parallelize_follows_the_plans_of_transformers() -> None:
    """Values are compared with one process inside of the program."""
    first, second = run(Program("parallelize_transformers")).results()
    assert first == second
    assert first == {
        "llama, tensor": "16 of 21",
        "llama, fsdp": "21 of 21",
        "tied, tensor": "15 of 20",
        "tied, fsdp": "20 of 20",
        "qwen3, tensor": "16 of 25",
        "qwen3, fsdp": "25 of 25",
    }


RECIPES = Path(__file__).resolve().parents[2] / "examples/recipes"


def test_the_recipe_for_ray_trains_as_under_torchrun() -> None:
    require(RAY)
    losses = re.compile(r"epoch \d: loss [\d.]+|2 processes, ringleader: accuracy .*%")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    found = []
    for command in (
        (*torchrun, "--standalone", str(RECIPES / "train.py")),
        (sys.executable, str(RECIPES / "ray_train.py")),
    ):
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        env |= {"RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        ended = subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        lines = losses.findall(ended.stdout + ended.stderr)
        found.append(list(dict.fromkeys(lines)))  # Ray shows some of them twice
    assert len(found[0]) == 7
    assert found[0] == found[1]
