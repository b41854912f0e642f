"""What a newcomer with three machines does in one evening, from the first command on.

init, join, up; a project with a package and data; LoRA by Hugging Face's Trainer under
--survive, with unchanged defaults; a worker is killed; the adapter comes home. Real
commands on three hosts of a LAN: every one of them ends with status 0.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ringleader.simulation.lan import VirtualHost, can_make_lan, lan

pytestmark = [
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

WITHIN_S = 900.0
NAMES = ("desk", "laptop", "attic")
MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def make_model():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    return LlamaForCausalLM(config)
"""
ROWS = """
from pathlib import Path
from datasets import Dataset

def read_rows():
    lines = Path(__file__).with_name("rows.csv").read_text().splitlines()
    rows = [[int(word) for word in line.split(",")] for line in lines]
    return Dataset.from_dict({"input_ids": rows, "labels": rows})
"""
TRAIN = """
import os, sys, time
from pathlib import Path
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainerCallback, TrainingArguments
from flat.models import make_model
from flat.rows import read_rows

class Wait(TrainerCallback):
    "Stands for hours of training: the middle of it lasts until somebody says so."
    def on_step_begin(self, arguments, state, control, **more):
        if state.global_step == 15:
            rank = os.environ["RANK"]
            print(f"rank {rank} is in the middle, pid {os.getpid()}", flush=True)
            while not Path(sys.argv[1]).exists():
                time.sleep(0.1)

lora = LoraConfig(r=8, target_modules="all-linear")
trainer = Trainer(
    get_peft_model(make_model(), lora),
    TrainingArguments(
        output_dir="result", use_cpu=True, per_device_train_batch_size=4, max_steps=40,
        learning_rate=2e-2, logging_steps=5, save_strategy="no", report_to=[],
    ),
    train_dataset=read_rows(),
    callbacks=[Wait()],
)
trainer.train()
trainer.save_model("result/adapter")
"""


@dataclass
class Machine:
    """A host with a home of its own."""

    host: VirtualHost
    folder: Path
    name: str
    lines: list[str] = field(default_factory=list)

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return self.host.popen(
            [sys.executable, "-m", "ringleader.cli.main", *words],
            cwd=cwd or self.folder,
            env={
                **os.environ,
                "RINGLEADER_HOME": str(self.folder / "home"),
                "RINGLEADER_NAME": self.name,
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, typed: str = "", cwd: Path | None = None) -> str:
        """Run a command to its end, which must be a good one."""
        process = self.start(*words, cwd=cwd)
        said, _ = process.communicate(typed, timeout=WITHIN_S)
        assert process.returncode == 0, said
        return said


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    with lan(hosts=3, rate="1gbit") as net:
        made = [
            Machine(host, tmp_path / name, name)
            for host, name in zip(net.hosts, NAMES, strict=True)
        ]
        for machine in made:
            machine.folder.mkdir()
        yield made


def write_project(folder: Path) -> None:
    package = folder / "flat"
    package.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (package / "models.py").write_text(MODEL)
    (package / "rows.py").write_text(ROWS)
    rows = [[3 + (7 * i + k) % 60 for k in range(12)] for i in range(600)]
    (package / "rows.csv").write_text("\n".join(",".join(map(str, r)) for r in rows))


def follow(process: subprocess.Popen[str], lines: list[str]) -> threading.Thread:
    assert process.stdout is not None
    stream = iter(process.stdout.readline, "")
    reader = threading.Thread(target=lines.extend, args=(stream,), daemon=True)
    reader.start()
    return reader


def find(lines: list[str], pattern: str) -> re.Match[str]:
    until_s = time.monotonic() + WITHIN_S
    while not (found := re.search(pattern, "".join(lines))):
        assert time.monotonic() < until_s, "".join(lines)
        time.sleep(0.1)
    return found


def test_a_newcomer_trains_an_adapter_on_three_machines(
    machines: list[Machine], tmp_path: Path
) -> None:
    desk, laptop, attic = machines
    phrase = next(w for w in desk.run("init").split() if w.count("-") == 8)
    for other in (laptop, attic):
        other.run("join", typed=f"{phrase}\n")
    for machine in machines:
        machine.run("up", "--jobs")
    until_s = time.monotonic() + WITHIN_S
    while len(json.loads(desk.run("status", "--json"))[0]["nodes"]) < len(NAMES):
        assert time.monotonic() < until_s, desk.run("status")

    project, go_on = tmp_path / "adapter for the flat", tmp_path / "go on"
    write_project(project)
    words = ("--survive", "--nodes", "3", "--rank0", "laptop", "train.py", str(go_on))
    lines: list[str] = []
    with desk.start("run", *words, cwd=project) as training:
        reader = follow(training, lines)
        for rank in range(3):
            find(lines, rf"rank {rank} is in the middle")
        pid = int(find(lines, r"rank 2 is in the middle, pid (\d+)")[1])
        os.kill(pid, signal.SIGKILL)
        find(lines, r"rank 2 on \w+ failed: killed by SIGKILL")
        go_on.touch()
        code = training.wait(WITHIN_S)
        reader.join(WITHIN_S)
    said = "".join(lines)
    assert code == 0, said
    assert "starting it again" not in said
    assert re.search(r"finished on \w+, \w+ \(\w+ lost\)", said), said
    (job,) = json.loads(desk.run("jobs", "--json"))
    assert (job["state"], job["exit_status"]) == ("succeeded", 0), job

    desk.run("fetch", job["id"], "result", cwd=project)
    check_adapter(project)
    for machine in machines:
        machine.run("down")


def check_adapter(project: Path) -> None:
    """The adapter that came home makes the model count."""
    code = """
import torch
from peft import PeftModel
from flat.models import make_model
from flat.rows import read_rows
rows = torch.tensor(read_rows()["input_ids"][:32])
losses = []
for model in (make_model(), PeftModel.from_pretrained(make_model(), "result/adapter")):
    with torch.no_grad():
        losses.append(model(input_ids=rows, labels=rows).loss.item())
assert losses[1] < 0.95 * losses[0], losses
"""
    subprocess.run([sys.executable, "-c", code], cwd=project, check=True, timeout=300)
