"""Many replicas of a small model, trained at once as one stacked model.

AdamW works element by element, so one optimizer over stacked tensors is an optimizer
for each replica. A replica that has made its steps of a round is put back to where it
was then, its part of the optimizer's state included.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional

from ringleader.paramserver.tasks import digits

Vector = NDArray[np.float32]
WINDOW = 64
_MAX_CHARACTERS = 3_000_000


@dataclass(frozen=True)
class Problem:
    """A model, its data, and what is reported of it."""

    name: str
    make_model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    """Samples of one step of one worker."""
    rate: float
    """Learning rate of AdamW."""
    reports_accuracy: bool


class CharTransformer(nn.Module):
    """A causal transformer over characters: 0.83 million parameters."""

    def __init__(self, characters: int, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(WINDOW, width)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        nn.init.normal_(self.characters.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)
        mask = torch.full((WINDOW, WINDOW), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.characters(text) + self.positions.weight
        for layer in self.layers:
            hidden = layer(hidden, self.mask)
        logits: Tensor = self.head(self.norm(hidden))
        return logits.transpose(1, 2)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        count, length, width = hidden.shape
        qkv = self.qkv(self.norm1(hidden))
        parts = qkv.reshape(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores + mask, dim=-1) @ value
        hidden = hidden + self.project(
            mixed.transpose(1, 2).reshape(count, length, width)
        )
        return hidden + self.down(functional.gelu(self.up(self.norm2(hidden))))


def characters() -> Problem:
    """Predict the next character of the sources of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py")) + sorted(folder.glob("*/*.py"))
    text = ""
    for file in files:
        if "site-packages" not in file.parts and len(text) < _MAX_CHARACTERS:
            text += file.read_text(encoding="utf-8", errors="ignore")
    raw = np.frombuffer(text[:_MAX_CHARACTERS].encode("ascii", "ignore"), np.uint8)
    alphabet, codes = np.unique(raw, return_inverse=True)
    windows = torch.from_numpy(codes.astype(np.int64)).unfold(0, WINDOW + 1, WINDOW)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    chosen, held = windows[order[2048:]], windows[order[:2048]]
    return Problem(
        "characters",
        lambda: CharTransformer(len(alphabet)),
        (chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()),
        (held[:, :-1].contiguous(), held[:, 1:].contiguous()),
        batch=16,
        rate=1e-3,
        reports_accuracy=False,
    )


def handwriting() -> Problem:
    """Tell handwritten digits apart with a perceptron of one hidden layer."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    train, test = digits.dataset("train"), digits.dataset("test")
    return Problem(
        "digits", make, train, test, batch=8, rate=2e-3, reports_accuracy=True
    )


PROBLEMS = {"characters": characters, "digits": handwriting}


class Replicas:
    """``count`` replicas; those of one seed begin alike."""

    def __init__(self, problem: Problem, seeds: list[int], device: str) -> None:
        self.problem, self.device, self.count = problem, device, len(seeds)
        models = []
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(problem.make_model())
        stacked, buffers = stack_module_state(models)
        self.named = {n: t.detach().to(device) for n, t in stacked.items()}
        self._buffers = {n: t.to(device) for n, t in buffers.items()}
        for tensor in self.named.values():
            tensor.requires_grad_()
        self._skeleton = models[0].to("meta")
        self.optimizer = torch.optim.AdamW(
            list(self.named.values()), lr=problem.rate, foreach=True
        )
        self._train = tuple(t.to(device) for t in problem.train)
        self._test = tuple(t.to(device) for t in problem.test)

    def set_rate(self, factor: float) -> None:
        """Scale the learning rate of the local steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.problem.rate * factor

    def step(self, samples: list[NDArray[np.int64]]) -> None:
        """Make one step of each replica on its own samples."""
        chosen = torch.from_numpy(np.stack(samples)).to(self.device)
        inputs, targets = self._train[0][chosen], self._train[1][chosen]
        self.optimizer.zero_grad(set_to_none=True)
        torch.vmap(self._loss)(
            self.named, self._buffers, inputs, targets
        ).sum().backward()
        self.optimizer.step()

    def _loss(
        self,
        named: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
    ) -> Tensor:
        found = functional_call(self._skeleton, (named, buffers), (inputs,))
        return functional.cross_entropy(found, targets)

    @torch.no_grad()
    def test(self) -> list[float]:
        """Return the test loss of each replica, or its accuracy in percent."""
        return [self._test_one(i) for i in range(self.count)]

    def _test_one(self, replica: int) -> float:
        named = {n: t[replica] for n, t in self.named.items()}
        buffers = {n: t[replica] for n, t in self._buffers.items()}
        total = 0.0
        inputs, targets = self._test
        for i in range(0, len(inputs), 512):
            x, y = inputs[i : i + 512], targets[i : i + 512]
            found = functional_call(self._skeleton, (named, buffers), (x,))
            if self.problem.reports_accuracy:
                total += 100 * float((found.argmax(1) == y).sum())
            else:
                total += float(functional.cross_entropy(found, y)) * len(x)
        return total / len(inputs)

    def values(self, replica: int) -> Vector:
        """Copy the parameters of a replica to one vector."""
        parts = [t[replica].detach().reshape(-1) for t in self.named.values()]
        return torch.cat(parts).cpu().numpy()

    @torch.no_grad()
    def load(self, replica: int, vector: Vector) -> None:
        """Set the parameters of a replica."""
        source = torch.from_numpy(vector).to(self.device)
        begin = 0
        for tensor in self.named.values():
            size = tensor[replica].numel()
            tensor[replica] = source[begin : begin + size].view_as(tensor[replica])
            begin += size

    def _slices(self, replica: int) -> list[Tensor]:
        states = [self.optimizer.state.get(t, {}) for t in self.named.values()]
        kept = [s[key] for s in states for key in ("exp_avg", "exp_avg_sq") if s]
        return [t.detach()[replica] for t in (*self.named.values(), *kept)]

    def snapshot(self, replica: int) -> list[Tensor]:
        """Copy the parameters and the optimizer's state of a replica."""
        return [t.clone() for t in self._slices(replica)]

    @torch.no_grad()
    def restore(self, replica: int, snapshot: list[Tensor]) -> None:
        """Put a replica back to its snapshot."""
        for target, source in zip(self._slices(replica), snapshot, strict=True):
            target.copy_(source)
