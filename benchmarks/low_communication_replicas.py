"""Many replicas of a small model, trained at once as one stacked model.

A GPU makes a step of a hundred of them in little more time than of one. A replica that
has made its steps of a round is put back to where it was then, with its optimizer.
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
    """A causal transformer; 0.36 million parameters with width 96 and 3 layers."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
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


def characters(width: int = 96, layers: int = 3, batch: int = 16) -> Problem:
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
        lambda: CharTransformer(len(alphabet), width, layers),
        (chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()),
        (held[:, :-1].contiguous(), held[:, 1:].contiguous()),
        batch=batch,
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


def few_characters() -> Problem:
    """Build the same with 64 thousand parameters, for a slow machine."""
    return characters(width=48, layers=2, batch=8)


PROBLEMS = {
    "characters": characters,
    "few-characters": few_characters,
    "digits": handwriting,
}


class Replicas:
    """Replicas of a model with AdamW each; those of one seed begin alike."""

    def __init__(self, problem: Problem, seeds: list[int], device: str) -> None:
        self.problem, self.device, self.count = problem, device, len(seeds)
        models = {seed: _seeded(problem, seed) for seed in set(seeds)}
        stacked, buffers = stack_module_state([models[seed] for seed in seeds])
        self.named = {n: t.detach().to(device) for n, t in stacked.items()}
        self._buffers = {n: t.to(device) for n, t in buffers.items()}
        self._skeleton = models[seeds[0]].to("meta")
        self._parts = list(self.named.values())
        for tensor in self._parts:
            tensor.requires_grad_()
        self._means = [torch.zeros_like(t) for t in self._parts]
        self._squares = [torch.zeros_like(t) for t in self._parts]
        self._steps = 0
        self._train = tuple(t.to(device) for t in problem.train)
        self._test = tuple(t.to(device) for t in problem.test)

    def step(self, samples: NDArray[np.int64], rates: Tensor, group_of: Tensor) -> None:
        """Make one step of AdamW in each replica, on its own samples.

        Replicas of the same number in ``group_of`` average their gradients first.
        """
        chosen = torch.from_numpy(samples).to(self.device)
        inputs, targets = self._train[0][chosen], self._train[1][chosen]
        losses = torch.vmap(self._loss)(self.named, self._buffers, inputs, targets)
        gradients = torch.autograd.grad(losses.sum(), self._parts)
        with torch.no_grad():
            self._update(_averaged(gradients, group_of), rates)

    def _update(self, gradients: list[Tensor], rates: Tensor) -> None:
        squares = sum(g.flatten(1).square().sum(1) for g in gradients)
        clip = (1.0 / squares.sqrt().clamp(min=1.0)).to(self.device)  # type: ignore[union-attr]
        self._steps += 1
        first, second = 1 - 0.9**self._steps, 1 - 0.99**self._steps
        for part, gradient, mean, square in zip(
            self._parts, gradients, self._means, self._squares, strict=True
        ):
            shape = (-1,) + (1,) * (part.dim() - 1)
            gradient = gradient * clip.view(shape)
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient.square(), 0.01)
            rate = rates.view(shape)
            part.mul_(1 - 0.01 * rate)
            part.sub_(rate * (mean / first) / ((square / second).sqrt() + 1e-8))

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
    def test(self, replica: int) -> float:
        """Return the test loss of a replica, or its accuracy in percent."""
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

    @torch.no_grad()
    def values(self, replicas: list[int]) -> Vector:
        """Copy the parameters of replicas to the rows of a matrix."""
        parts = [t[replicas].flatten(1) for t in self._parts]
        found: Vector = torch.cat(parts, dim=1).cpu().numpy()
        return found

    @torch.no_grad()
    def load(self, replicas: list[int], rows: Vector) -> None:
        """Set the parameters of replicas."""
        source = torch.from_numpy(rows).to(self.device)
        begin = 0
        for part in self._parts:
            size = part[0].numel()
            values = source[:, begin : begin + size]
            part[replicas] = values.view(len(replicas), *part.shape[1:])
            begin += size

    def _slices(self, replica: int) -> list[Tensor]:
        kept = (*self._parts, *self._means, *self._squares)
        return [t.detach()[replica] for t in kept]

    def snapshot(self, replica: int) -> list[Tensor]:
        """Copy the parameters and the optimizer's state of a replica."""
        return [t.clone() for t in self._slices(replica)]

    @torch.no_grad()
    def restore(self, replica: int, snapshot: list[Tensor]) -> None:
        """Put a replica back to its snapshot."""
        for target, source in zip(self._slices(replica), snapshot, strict=True):
            target.copy_(source)


def _seeded(problem: Problem, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return problem.make_model()


def _averaged(gradients: tuple[Tensor, ...], group_of: Tensor) -> list[Tensor]:
    """Replace each gradient by the mean over its group."""
    groups = int(group_of.max()) + 1
    sizes = torch.bincount(group_of, minlength=groups)
    out = []
    for gradient in gradients:
        flat = gradient.flatten(1)
        sums = torch.zeros(groups, flat.shape[1], device=flat.device)
        sums.index_add_(0, group_of, flat)
        out.append((sums / sizes[:, None])[group_of].view_as(gradient))
    return out
