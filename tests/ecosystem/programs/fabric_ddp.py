"""Lightning Fabric, data parallel."""

from __future__ import annotations

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from report import digest, report
from torch.utils.data import DataLoader
from toy import examples, loss_of, network

backend = sys.argv[1]
strategy = DDPStrategy(process_group_backend=backend) if backend else "ddp"
fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
fabric.launch()
model = network()
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(DataLoader(examples(), batch_size=8))
losses, counts = [], []
for _ in range(2):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        fabric.backward(loss)
        optimizer.step()
        losses.append(float(fabric.all_reduce(loss.detach(), reduce_op="mean")))
        wrong = (model(inputs).argmax(1) != labels).sum() - 5
        counts.append(int(fabric.all_reduce(wrong, reduce_op="mean")))
gathered = fabric.all_gather(torch.tensor([fabric.global_rank]))
report(losses=losses, counts=counts, gathered=gathered.tolist(), weights=digest(model))
