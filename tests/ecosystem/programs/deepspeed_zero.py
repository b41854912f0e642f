"""DeepSpeed on the CPU, ZeRO 0 to 3."""

from __future__ import annotations

import sys

import deepspeed
import torch
from report import digest, report
from toy import examples, loss_of, network

# Its own shared memory serves inference only; compiling it takes minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend=sys.argv[1] or None)
found = {}
for stage in range(4):
    model = network()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        training_data=examples(),
        config={
            "train_micro_batch_size_per_gpu": 8,
            "zero_optimization": {"stage": stage, "overlap_comm": False},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 1000,
        },
    )
    losses = []
    for inputs, labels in loader:
        loss = loss_of(engine(inputs), labels)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters):
        found[stage] = [*losses, digest([p.data for p in parameters])]
report(found=found)
deepspeed.comm.destroy_process_group()
