"""``ringleader.shard`` in Lightning and Accelerate, which replace samplers."""

from __future__ import annotations

import sys

import torch
from report import report
from torch import Tensor
from torch.utils.data import TensorDataset
from toy import examples, loss_of, network

import ringleader

COUNT = 61
inputs, labels = examples(COUNT).tensors
batches = ringleader.shard(
    TensorDataset(inputs, labels, torch.arange(COUNT)), 8, num_workers=2
)
seen: list[int] = []


def step(model: torch.nn.Module, batch: list[Tensor]) -> Tensor:
    seen.extend(batch[2].tolist())
    return loss_of(model(batch[0]), batch[1])


if sys.argv[1] == "lightning":
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return step(self.network, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.network.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), batches)
    report(seen=seen)
else:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(plain, optimizer, batches)
    assert loader is batches
    for batch in loader:
        accelerator.backward(step(model, batch))
        optimizer.step()
    report(seen=seen)
    accelerator.end_training()
