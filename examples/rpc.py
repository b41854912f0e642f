"""RPC: rank 0 keeps the weights, the others fetch them and send gradients.

A parameter server in its simplest form. The workers do not wait for each other.

    torchrun --standalone --nproc-per-node 3 examples/rpc.py
"""

from __future__ import annotations

import threading

import digits
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ringleader import rpc

EPOCHS = 6
BATCH = 30
LEARNING_RATE = 0.1


class Server:
    """The weights, and the lock under which gradients are applied."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.lock = threading.Lock()


@rpc.register
def make_server() -> Server:
    """Create the weights; the result stays on rank 0, the callers get an RRef."""
    return Server(new_model())


@rpc.register
def weights(server: rpc.RRef) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    found: Server = server.local_value()
    with found.lock:
        return {k: v.clone() for k, v in found.model.state_dict().items()}


@rpc.register
def apply(server: rpc.RRef, gradients: list[Tensor]) -> None:
    """Take one step with the gradients of a worker."""
    found: Server = server.local_value()
    with found.lock, torch.no_grad():
        for parameter, gradient in zip(
            found.model.parameters(), gradients, strict=True
        ):
            parameter -= LEARNING_RATE * gradient


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


def train(server: rpc.RRef, worker: int, num_workers: int) -> None:
    (x, y), model = digits.load()[0], new_model()
    x, y = x[worker::num_workers], y[worker::num_workers]
    for _ in range(EPOCHS):
        for start in range(0, len(x), BATCH):
            state = rpc.rpc_sync(0, weights, args=(server,))
            model.load_state_dict(state)
            model.zero_grad()
            cross_entropy(
                model(x[start : start + BATCH]), y[start : start + BATCH]
            ).backward()
            gradients = [parameter.grad for parameter in model.parameters()]
            rpc.rpc_sync(0, apply, args=(server, gradients))


def main() -> None:
    torch.set_num_threads(1)  # all processes share the cores of this machine
    dist.init_process_group("ringleader")
    rank, size = dist.get_rank(), dist.get_world_size()
    rpc.start()
    if rank == 1:
        server = rpc.remote(0, make_server)
        others = [
            rpc.rpc_async(
                other, run_worker, args=(server, other - 1, size - 1), timeout=300
            )
            for other in range(2, size)
        ]
        train(server, 0, size - 1)
        for future in others:
            future.wait()
        x, y = digits.load()[1]
        model = new_model()
        model.load_state_dict(rpc.rpc_sync(0, weights, args=(server,)))
        accuracy = (model(x).argmax(1) == y).float().mean().item()
        print(f"accuracy {accuracy:.1%}")
    rpc.shutdown(timeout=300)
    dist.destroy_process_group()


@rpc.register
def run_worker(server: rpc.RRef, worker: int, num_workers: int) -> None:
    """Train on one part of the data, as rank 1 asks for."""
    train(server, worker, num_workers)


if __name__ == "__main__":
    main()
