"""Memory and time of ``ringleader.parallelize`` with each strategy, on this machine.

Ranks train the same transformer with AdamW. Counted is the storage of all live tensors
of a rank beyond what was there before: after a step (parameters and optimizer), and in
the middle of forward and of backward (with gradients, gathered blocks, activations).

    .venv/bin/python benchmarks/parallelize.py --json benchmarks/results/FILE.json
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import time
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import ringleader

WORDS, WIDTH, LAYERS, LENGTH, ROWS = 256, 96, 8, 16, 2
STEPS = 5
LIMIT = 0.40
"""What a rank of FSDP may hold of DDP's parameters and optimizer, with 4 ranks."""

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ddp", "ddp", {}),
    ("fsdp", "fsdp", {}),
    ("fsdp, grad", "fsdp", {"shard": "grad"}),
    ("fsdp, hybrid 2 x 2", "fsdp", {"shard": "hybrid", "hosts": [[0, 1], [2, 3]]}),
    ("tensor", "tensor", {}),
    ("fsdp+tensor 2 x 2", "fsdp+tensor", {"tensor": 2}),
    ("ddp+tensor 2 x 2", "ddp+tensor", {"tensor": 2}),
]


def main() -> None:
    """Run every case in one world of four ranks and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = run_world(4)
    plain = results[0]["kept_bytes"]
    for row in results:
        row["share_of_ddp"] = round(row["kept_bytes"] / plain, 3)
        print(
            f"{row['case']:20} kept {row['kept_bytes'] / 1e6:6.1f} MB "
            f"({row['share_of_ddp']:.1%} of DDP), most "
            f"{row['peak_bytes'] / 1e6:6.1f} MB"
            f", step {row['step_s'] * 1e3:.0f} ms"
        )
    share = results[1]["share_of_ddp"]
    print(f"fsdp: {share:.1%} of DDP, limit {LIMIT:.0%}:", "ok" * (share <= LIMIT))
    machine = {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "at": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    if arguments.json:
        text = json.dumps({"machine": machine, "ranks": 4, "rows": results}, indent=1)
        arguments.json.write_text(f"{text}\n")
    assert share <= LIMIT, results


def run_world(size: int) -> list[dict[str, Any]]:
    """Fork the ranks, which need not import torch again; return rank 0's results."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=run_rank, args=(rank, size, folder, sender))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        sender.close()  # so that the end of rank 0 is the end of the pipe
        results: list[dict[str, Any]] = receiver.recv() if receiver.poll(600) else []
        for process in ranks:
            process.join(60)
            assert process.exitcode == 0, process.exitcode
    return results


def run_rank(rank: int, size: int, folder: str, sender: Connection) -> None:
    """Measure all cases."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "ringleader",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    results = [measure(*case) for case in CASES]
    if rank == 0:
        sender.send(results)
    dist.destroy_process_group()


def measure(name: str, strategy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train a few steps with one strategy."""
    gc.collect()
    before = live_bytes()
    trainer = ringleader.parallelize(
        model(),
        strategy,
        optimizer=lambda p: torch.optim.AdamW(p, 1e-3),
        loss=lambda output, target: cross_entropy(
            output.flatten(0, 1), target.flatten()
        ),
        **options,
    )
    times, peaks = [], []
    for step in range(STEPS):
        torch.manual_seed(step + trainer.data_rank)
        text = torch.randint(0, WORDS, (ROWS, LENGTH + 1))
        hooks = []
        if step == STEPS - 1:  # the last one is not timed
            hooks = watch(trainer.model, lambda: peaks.append(live_bytes()))
        begin = time.perf_counter()
        trainer.step(text[:, :-1], text[:, 1:])
        times.append(time.perf_counter() - begin)
        for hook in hooks:
            hook.remove()
    trainer.optimizer.zero_grad()
    gc.collect()
    return {
        "case": name,
        "kept_bytes": live_bytes() - before,
        "peak_bytes": max(peaks) - before,
        "step_s": statistics.median(times[1:-1]),
    }


def watch(module: nn.Module, look: Any) -> list[Any]:  # noqa: ANN401  # torch's handles
    """Look when half of the layers have run forward, and when half have backward."""
    layer = [each for each in module.modules() if isinstance(each, Block)][LAYERS // 2]
    return [
        layer.register_forward_hook(lambda *_: look()),
        layer.register_full_backward_hook(lambda *_: look()),
    ]


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, WIDTH)
        self.v_proj = nn.Linear(WIDTH, WIDTH)
        self.o_proj = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then transform each position."""
        y = self.norms[0](x)
        heads = [
            layer(y).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mlp(self.norms[1](x))
        return result


def model() -> nn.Module:
    """A transformer of 0.9 million parameters."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(LAYERS)]
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, head)


def live_bytes() -> int:
    """Return the memory of all tensors of this process."""
    found: dict[int, int] = {}
    for each in gc.get_objects():
        if type(each) not in (Tensor, nn.Parameter, DTensor):  # fake ones have no bytes
            continue
        for tensor in (each, each.grad if each.is_leaf else None):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if local is not None and not local.is_meta:
                storage = local.untyped_storage()
                if num_bytes := storage.nbytes():  # what FSDP has freed has none
                    found[storage.data_ptr()] = num_bytes
    return sum(found.values())


if __name__ == "__main__":
    main()
