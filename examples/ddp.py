"""Data parallel: every process has the whole model and trains on its share of data.

DistributedDataParallel averages the gradients over all processes in every step.

    torchrun --standalone --nproc-per-node 2 examples/ddp.py

With a folder for checkpoints, a run that was interrupted continues where it was, also
on another number of machines, which need no common disk:

    ringleader run --checkpoint ~/digits examples/ddp.py
"""

from __future__ import annotations

import argparse

import digits
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ringleader

EPOCHS = 8
BATCH = 32  # per process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringleader", help="or gloo, to compare")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)

    dist.init_process_group(arguments.backend)
    train, test = digits.load()
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = TensorDataset(*train)
    sampler: DistributedSampler = DistributedSampler(data)  # a share for each process
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    resumable = ringleader.resume()  # None in the first run
    done = resumable.load(model, optimizer).step if resumable else 0
    if done:
        print_once(f"resumed after epoch {done}")
    for epoch in range(done + 1, EPOCHS + 1):
        sampler.set_epoch(epoch)  # a new order in every epoch
        total = torch.zeros(())
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # averages gradients while it runs
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        mean = total.item() / len(loader) / dist.get_world_size()
        print_once(f"epoch {epoch}: loss {mean:.4f}")
        if folder := ringleader.checkpoint.folder():
            ringleader.checkpoint.save(folder, epoch, model, optimizer)

    print_once(f"accuracy {accuracy(model, *test):.1%}")
    dist.destroy_process_group()


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
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
