"""Accelerate, data parallel: nothing in the program names a backend."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from report import digest, make_group_first, report
from torch.utils.data import DataLoader
from toy import examples, loss_of, network

make_group_first()
accelerator = Accelerator(cpu=True)
model = network()
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    DataLoader(examples(), batch_size=8),
)
losses, right = [], 0
for _ in range(3):
    for inputs, labels in loader:
        outputs = model(inputs)
        loss = loss_of(outputs, labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        guessed, wanted = accelerator.gather_for_metrics((outputs.argmax(1), labels))
        right += int((guessed == wanted).sum())
report(
    losses=losses,
    right=right,
    weights=digest(accelerator.unwrap_model(model)),
    kind=str(accelerator.distributed_type),
)
accelerator.end_training()
