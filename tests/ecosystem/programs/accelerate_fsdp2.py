"""Accelerate, fully sharded (FSDP2): nothing in the program names a backend."""

from __future__ import annotations

import shard_on_cpu  # noqa: F401 - on import
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from report import digest, report
from torch import nn
from torch.utils.data import DataLoader
from toy import examples, loss_of, network

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["Linear"],
    state_dict_type="SHARDED_STATE_DICT",
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
model = nn.Sequential(*network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = accelerator.prepare(model, optimizer)
loader = accelerator.prepare(DataLoader(examples(), batch_size=8))
losses = []
for _ in range(3):
    for inputs, labels in loader:
        loss = loss_of(model(inputs), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
report(
    losses=losses,
    weights=digest(model),
    kinds=sorted({type(p).__name__ for p in model.parameters()}),
    kind=str(accelerator.distributed_type),
)
accelerator.end_training()
