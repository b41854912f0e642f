"""Ignite: idist.Parallel knows nccl, gloo and mpi only."""

from __future__ import annotations

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy
from report import digest, make_group_first, report
from toy import examples, loss_of, network


def train(_: int) -> None:
    model = idist.auto_model(network())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = idist.auto_dataloader(examples(), batch_size=16, shuffle=False)
    losses: list[float] = []

    def step(_: Engine, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        outputs = model(batch[0])
        loss = loss_of(outputs, batch[1])
        loss.backward()
        optimizer.step()
        losses.append(float(idist.all_reduce(loss.item())))
        return {"y_pred": outputs.detach(), "y": batch[1]}

    trainer = Engine(step)
    Accuracy().attach(trainer, "accuracy")
    scores: list[float] = []
    trainer.on(Events.EPOCH_COMPLETED)(
        lambda e: scores.append(e.state.metrics["accuracy"])
    )
    trainer.run(loader, max_epochs=2)
    names = idist.all_gather(f"rank {idist.get_rank()}")
    idist.barrier()
    report(losses=losses, scores=scores, names=names, weights=digest(model))


make_group_first()
with idist.Parallel(backend=None if dist.is_initialized() else "gloo") as parallel:
    parallel.run(train)
