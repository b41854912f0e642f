"""Lightning, data parallel; an integer is logged with sync_dist=True."""

from __future__ import annotations

import sys

import lightning as pl
import torch
from lightning.pytorch.strategies import DDPStrategy
from report import digest, report
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from toy import examples, loss_of, network


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.accuracy = MulticlassAccuracy(num_classes=3, average="micro")
        self.logged: list[list[float]] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels = batch
        outputs = self.network(inputs)
        loss = loss_of(outputs, labels)
        self.accuracy(outputs, labels)
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        self.log(
            "seen", torch.tensor(7 * index - 10 - self.global_rank), sync_dist=True
        )
        self.log("accuracy", self.accuracy, on_epoch=True, on_step=False)
        return loss

    def on_train_epoch_end(self) -> None:
        self.logged.append([float(v) for v in self.trainer.callback_metrics.values()])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.network.parameters(), lr=0.1)


backend = sys.argv[1]
strategy = DDPStrategy(process_group_backend=backend) if backend else "ddp"
trainer = pl.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=strategy,
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Module()
trainer.fit(module, DataLoader(examples(), batch_size=8))
report(logged=module.logged, weights=digest(module.network))
