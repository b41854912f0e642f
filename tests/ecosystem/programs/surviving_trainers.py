"""Trainers of others on three ranks each, one of which kills itself.

``surviving_trainers.py SCENARIOS``: a JSON list of scenarios. Each has the trainer, the
rank that dies, when, and the environments of its ranks, which are forked from here: to
import the libraries takes many times as long as to train. A rank writes what it found
to ``OUT/rankN.json`` and what it said to ``OUT/rankN.log``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import lightning
import torch
from datasets import Dataset
from report import digest
from tiny_models import causal_model, tokenizer
from torch import Tensor
from torch.utils.data import DataLoader
from toy import examples, loss_of, network
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import SFTConfig, SFTTrainer

from tests.kit.ranks_without_agent import environments

SIZE, STEPS = 3, 24


def counting_rows(count: int, start: int) -> Dataset:
    """Rows that count upwards: what is learned from some of them holds for others."""
    generator = torch.Generator().manual_seed(start)
    first = torch.randint(3, 52, (count, 1), generator=generator)
    rows = (first + torch.arange(12)).tolist()
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Death(TrainerCallback):
    """Ends the process at a moment of its training."""

    def __init__(self, when: str) -> None:
        self.when = when

    def on_step_begin(self, _: Any, state: Any, __: Any, **more: Any) -> None:
        if self.when == "begin" and state.global_step == STEPS // 3:
            die()
        if self.when == "backward" and state.global_step == STEPS // 2:
            model = more["model"]
            parameters = [p for p in model.parameters() if p.requires_grad]
            parameters[len(parameters) // 2].register_hook(die)

    def on_step_end(self, _: Any, state: Any, __: Any, **more: Any) -> None:
        if self.when == "last log" and state.global_step == STEPS:
            die()  # the losses of the last steps are gathered next


def make_trainer(kind: str, out: Path, rank: int) -> Trainer:
    common = {
        "output_dir": str(out),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "max_steps": STEPS,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 5,
    }
    model = causal_model()
    if kind == "trainer":
        return Trainer(
            model,
            TrainingArguments(**common, learning_rate=1e-2),
            train_dataset=counting_rows(600, 1),
            eval_dataset=counting_rows(24, 2),
        )
    return SFTTrainer(
        model=model,
        args=SFTConfig(
            **common,
            learning_rate=1e-2,
            bf16=False,
            max_length=16,
            eos_token="[SEP]",
            pad_token="[PAD]",
        ),
        train_dataset=counting_rows(600, 1).remove_columns("labels"),
        eval_dataset=counting_rows(24, 2).remove_columns("labels"),
        processing_class=tokenizer(out / f"words{rank}"),
    )


class Module(lightning.LightningModule):
    """Kills its process in the backward of a step, if it is to die."""

    def __init__(self, dies: bool) -> None:
        super().__init__()
        self.network, self.dies, self.losses = network(), dies, list[float]()

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = loss_of(self.network(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        if self.dies and self.current_epoch == 2:
            loss.register_hook(die)
        return loss

    def on_train_epoch_end(self) -> None:
        self.losses.append(float(self.trainer.callback_metrics["loss"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.1)


def fit(out: Path, rank: int, dies: bool) -> None:
    """Lightning, with a limit of time: rank 0 broadcasts whether it is over."""
    module = Module(dies)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=SIZE,
        strategy="ddp",
        max_epochs=6,
        max_time={"hours": 1},
        logger=False,
        default_root_dir=out,
        enable_progress_bar=False,
    )
    trainer.fit(module, DataLoader(examples(), batch_size=8))
    found = {"losses": module.losses, "weights": digest(module.network)}
    (out / f"rank{rank}.json").write_text(json.dumps(found))


def train(kind: str, when: str, dies: bool) -> None:
    out, rank = Path(os.environ["SURVIVING_OUT"]), int(os.environ["RANK"])
    torch.manual_seed(0)
    if kind == "lightning":
        fit(out, rank, dies)
        return
    trainer = make_trainer(kind, out, rank)
    if dies:
        trainer.add_callback(Death(when))
    trainer.train()
    saved = out / f"saved by {rank}"
    trainer.save_model(str(saved))
    losses = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    found = {
        "losses": losses,
        "evaluated": trainer.evaluate()["eval_loss"],
        "weights": digest(trainer.model),
        "saved": sorted(path.name for path in saved.glob("*.safetensors")),
    }
    if found["saved"]:
        read = type(trainer.model).from_pretrained(saved)
        found["read"] = digest(read)
    (out / f"rank{rank}.json").write_text(json.dumps(found))


def fork(scenario: dict[str, Any], rank: int, environment: dict[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    folder = scenario["folder"]
    alone = {
        "GROUP_RANK": str(rank),
        "TORCHELASTIC_RUN_ID": "training",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RINGLEADER_DEFAULT": "1",
        "SURVIVING_OUT": folder,
        "RINGLEADER_HOME": f"{folder}/home{rank}",
    }
    try:
        os.environ.update({**environment, **alone})
        with Path(folder, f"rank{rank}.log").open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        train(scenario["kind"], scenario["when"], rank == scenario["dying"])
        torch.distributed.destroy_process_group()
        status = 0
    except BaseException:  # noqa: BLE001 - no child may go on in the loop of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    for scenario in json.loads(Path(sys.argv[1]).read_text()):
        folder = Path(scenario["folder"])
        folder.mkdir()
        ranks = enumerate(environments(folder, SIZE))
        pids = [fork(scenario, rank, environment) for rank, environment in ranks]
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        (folder / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
