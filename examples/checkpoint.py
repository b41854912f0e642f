"""Checkpoint: save a sharded model and resume with another number of processes.

torch.distributed.checkpoint writes the shards of all processes into one folder and
reshards them on load. Run this twice; the loss continues where it was:

    torchrun --standalone --nproc-per-node 2 examples/checkpoint.py /tmp/digits
    torchrun --standalone --nproc-per-node 3 examples/checkpoint.py /tmp/digits
"""

from __future__ import annotations

import argparse
from pathlib import Path

import digits
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import AdamW, Optimizer

EPOCHS = 4  # in each run
BATCH = 60  # of all processes together, so that results do not depend on their number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the checkpoints")
    parser.add_argument("--backend", default="ringleader", help="or gloo, to compare")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # all processes share the cores of this machine
    torch.manual_seed(0)

    dist.init_process_group(arguments.backend)
    train, test = digits.load()
    model = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 10))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = AdamW(model.parameters(), lr=2e-3)

    # A checkpoint is complete when its metadata is written, which happens last.
    saved = sorted(path.parent for path in arguments.folder.glob("*/.metadata"))
    done = load(saved[-1], model, optimizer) if saved else 0
    loss, _ = measure(model, *train)
    print_once(
        f"{f'resumed from {saved[-1]}' if saved else 'new model'}: loss {loss:.4f}"
    )

    for epoch in range(done + 1, done + EPOCHS + 1):
        train_epoch(epoch, model, optimizer, *train)
        loss, _ = measure(model, *train)
        print_once(f"epoch {epoch}: loss {loss:.4f}")

    save(arguments.folder / f"{done + EPOCHS:04}", model, optimizer, done + EPOCHS)
    print_once(f"accuracy {measure(model, *test)[1]:.1%}")
    dist.destroy_process_group()


def save(folder: Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "epoch": epoch}
    dcp.save(state, checkpoint_id=folder)
    print_once(f"saved {folder}")


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Load model and optimizer in place; return their number of trained epochs."""
    weights, moments = get_state_dict(model, optimizer)  # the shards of this process
    state = {"model": weights, "optimizer": moments, "epoch": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["epoch"]


def train_epoch(
    epoch: int, model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor
) -> None:
    shuffle = torch.Generator().manual_seed(epoch)  # the same in all processes
    order = torch.randperm(len(labels), generator=shuffle)
    rank, size = dist.get_rank(), dist.get_world_size()
    for batch in order.split(BATCH):
        mine = batch.tensor_split(size)[rank]
        loss = cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def measure(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return loss and accuracy; each process evaluates a share of the data."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    guesses, truth = model(images[mine]), labels[mine]
    loss = cross_entropy(guesses, truth, reduction="sum")
    both = torch.stack([loss, (guesses.argmax(dim=1) == truth).sum()])
    dist.all_reduce(both)
    return both[0].item() / len(labels), both[1].item() / len(labels)


def print_once(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
