"""Fully sharded: every process has a shard of each parameter and optimizer state.

fully_shard() gathers a block's parameters just before they are needed, frees them
afterwards, and leaves each process with its shard of the averaged gradient.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 5
BATCH = 32  # per process
WIDTH = 128


class Block(nn.Module):
    """Two linear layers with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringleader", help="or gloo, to compare")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)

    dist.init_process_group(arguments.backend)
    train, test = digits.load()
    model = shard(nn.Sequential(nn.Linear(64, WIDTH), Block(), Block(), head()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(*train)
    sampler: DistributedSampler = DistributedSampler(data)  # a share for each process
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)  # a new order in every epoch
        total = torch.zeros(())
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        mean = total.item() / len(loader) / dist.get_world_size()
        print_once(f"epoch {epoch}: loss {mean:.4f}")

    print_once(f"accuracy {accuracy(model, *test):.1%}")
    dist.destroy_process_group()


def head() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))


def shard(model: nn.Sequential) -> nn.Module:
    """Shard each block separately, so that only one is gathered at a time."""
    whole = sum(p.numel() for p in model.parameters())
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    here = sum(p.to_local().numel() for p in model.parameters())
    print_once(f"{here} of {whole} parameters are on rank 0")
    return model


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the accuracy; each process evaluates a share of the test digits."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine]).argmax(dim=1) == labels[mine]).sum()
    dist.all_reduce(right)
    return right.item() / len(labels)


def print_once(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
