"""Pipeline parallel: the layers are spread over the processes, with 1F1B schedule.

Each batch is cut into microbatches. A stage sends its activations to the next stage and
its gradients to the previous one, and meanwhile works on another microbatch: one
forward, one backward (1F1B).

    torchrun --standalone --nproc-per-node 2 examples/pipeline.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import digits
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy

EPOCHS = 6
BATCH = 60  # divides the 360 test digits: a pipeline needs equal batches
MICROBATCHES = 6  # at least one per stage; more reduce idle time
WIDTH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringleader", help="or gloo, to compare")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)

    dist.init_process_group(arguments.backend)
    train, test = digits.load()
    rank, stages = dist.get_rank(), dist.get_world_size()
    layers = make_stage(rank, stages)
    stage = PipelineStage(layers, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=2e-3)

    for epoch in range(1, EPOCHS + 1):
        total, steps = torch.zeros(()), 0
        for images, labels in batches(*train, seed=epoch):
            optimizer.zero_grad()
            inputs = [images] if rank == 0 else []  # other stages receive activations
            losses: list[Tensor] = []  # per microbatch; filled by the last stage only
            schedule.step(*inputs, target=labels, losses=losses)
            optimizer.step()
            total += sum(losses) / MICROBATCHES
            steps += 1
        print_once(f"epoch {epoch}: loss {from_last_stage(total) / steps:.4f}")

    print_once(f"accuracy {accuracy(schedule, *test):.1%}")
    dist.destroy_process_group()


def make_stage(rank: int, stages: int) -> nn.Module:
    """Return the layers of this process; every stage has one hidden layer."""
    first = [nn.Linear(64, WIDTH), nn.ReLU()] if rank == 0 else []
    hidden = [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    last = [nn.Linear(WIDTH, 10)] if rank == stages - 1 else []
    return nn.Sequential(*first, *hidden, *last)


def batches(
    images: Tensor, labels: Tensor, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches, shuffled the same in all processes; drop an incomplete one."""
    shuffle = torch.Generator().manual_seed(seed)
    for batch in torch.randperm(len(labels), generator=shuffle).split(BATCH):
        if len(batch) == BATCH:
            yield images[batch], labels[batch]


def accuracy(schedule: Schedule1F1B, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy; the last stage counts correct predictions."""
    right = torch.zeros(())
    for some, truth in batches(images, labels, seed=0):
        inputs = [some] if dist.get_rank() == 0 else []
        guesses = schedule.eval(*inputs, target=truth)
        if guesses is not None:
            right += (guesses.argmax(dim=1) == truth).sum()
    return from_last_stage(right) / len(labels)


def from_last_stage(number: Tensor) -> float:
    """Broadcast a number from the last stage."""
    dist.broadcast(number, src=dist.get_world_size() - 1)
    return number.item()


def print_once(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
