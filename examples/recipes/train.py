"""Trains a small classifier with DistributedDataParallel, wherever it is started.

No line of it knows the launcher or the network: `ringleader run`, torchrun, Slurm,
Kubernetes, SkyPilot, dstack and Ray start this very file. Only `--backend` differs
where the cluster has NCCL.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 6
BATCH = 32  # per process
EXAMPLES = 2048
FEATURES, CLASSES = 32, 10


def train(backend: str = "ringleader") -> None:
    """Train and print the loss of each epoch, and the accuracy, on rank 0."""
    has_group = dist.is_initialized()  # Ray makes the group itself
    if not has_group:
        dist.init_process_group(backend)
    device = choose_device()
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = make_data()
    sampler: DistributedSampler = DistributedSampler(data)  # a share for each process
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(1, EPOCHS + 1):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for inputs, labels in loader:
            loss = cross_entropy(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        print_once(
            f"epoch {epoch}: loss {total / len(loader) / dist.get_world_size():.4f}"
        )
    right = (model(data.tensors[0].to(device)).argmax(1).cpu() == data.tensors[1]).sum()
    size, name = dist.get_world_size(), dist.get_backend()
    print_once(f"{size} processes, {name}: accuracy {right / EXAMPLES:.1%}")
    if not has_group:
        dist.destroy_process_group()


def choose_device() -> torch.device:
    """Return this process's GPU if the group uses NCCL, else the CPU."""
    if "nccl" not in str(dist.get_backend_config()):
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_node_local_rank(fallback_rank=0))
    torch.cuda.set_device(device)
    return device


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def make_data() -> TensorDataset:
    """Return points and the classes that a fixed random layer gives them."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    return TensorDataset(inputs, (inputs @ teacher).argmax(1))


def print_once(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringleader")
    train(parser.parse_args().backend)
