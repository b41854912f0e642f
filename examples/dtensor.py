"""Tensor parallel: every process has a part of each layer and sees all digits.

parallelize_module() turns parameters into DTensors. The columns of the first layer and
the rows of the second are sharded, so that one all_reduce per forward is enough.

    torchrun --standalone --nproc-per-node 2 examples/dtensor.py
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

EPOCHS = 8
BATCH = 64  # the same digits in all processes
HIDDEN = 192


class Classifier(nn.Module):
    """One hidden layer, whose units are sharded over the processes."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, HIDDEN)
        self.down = nn.Linear(HIDDEN, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(images)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringleader", help="or gloo, to compare")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)

    dist.init_process_group(arguments.backend)
    (images, labels), test = digits.load()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    model = parallelize_module(Classifier(), mesh, plan)
    for name, parameter in model.named_parameters():
        here = tuple(parameter.to_local().shape)
        print_once(f"{name}: {here} of {tuple(parameter.shape)} are on rank 0")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(1, EPOCHS + 1):
        shuffle = torch.Generator().manual_seed(epoch)  # the same in all processes
        batches = torch.randperm(len(labels), generator=shuffle).split(BATCH)
        total = 0.0
        for batch in batches:
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print_once(f"epoch {epoch}: loss {total / len(batches):.4f}")

    print_once(f"accuracy {accuracy(model, *test):.1%}")
    dist.destroy_process_group()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy; all processes compute it together."""
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def print_once(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
