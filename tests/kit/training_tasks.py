"""Two real tasks that converge in seconds: handwritten digits, and text by character.

What compression does to training is measured here. A run is deterministic: the seed
fixes the first parameters and the order of the examples, and every rank walks through
the same batches and works on its own slice of each. So two runs with one seed differ
only in how gradients travelled, and their losses can be compared to a part in a
thousand. Plain gradient descent, without momentum: nothing hides a wrong gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

DOCS = Path(__file__).parents[2] / "docs"
NUM_CHARACTERS = 128
"""ASCII characters; all others count as question marks."""

Gradients = dict[str, Tensor]
Average = Callable[[Gradients], object]
"""Replaces the gradients of this rank by their mean over all ranks, in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, its data and the hyperparameters of its training."""

    name: str
    make: Callable[[], nn.Module]
    """A model with torch's first parameters."""
    loss: Callable[[nn.Module, Tensor], Tensor]
    """The mean loss on some examples, which are named by number."""
    num_examples: int
    batch: int
    """Examples per step, over all ranks."""
    steps: int
    learning_rate: float
    weight_decay: float = 0.0
    rise: int = 1
    """Steps until the learning rate is reached."""

    def shortened(self, steps: int) -> Task:
        """The same with fewer steps; the learning rate still ends at nearly zero.

        Half of it, and a slower start: sparse gradients come late, and with the full
        rate a larger model diverges in its first steps.
        """
        return replace(self, steps=steps, learning_rate=self.learning_rate / 2, rise=40)

    def model(self, seed: int) -> nn.Module:
        """The same first parameters everywhere, whatever else uses random numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def batches(self, seed: int) -> Iterator[Tensor]:
        """The examples of every step: all of them once, then in another order."""
        generator = torch.Generator().manual_seed(seed + 1)
        waiting = torch.empty(0, dtype=torch.int64)
        for _ in range(self.steps):
            while len(waiting) < self.batch:
                fresh = torch.randperm(self.num_examples, generator=generator)
                waiting = torch.cat([waiting, fresh])
            yield waiting[: self.batch]
            waiting = waiting[self.batch :]

    def rate(self, step: int) -> float:
        """Half a cosine, after a rise: the end is calm enough to compare."""
        rise = min(1.0, (step + 1) / self.rise)
        fall = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * rise * fall


def learn(
    task: Task,
    model: nn.Module,
    seed: int,
    *,
    rank: int,
    size: int,
    average: Average | None = None,
) -> Iterator[float]:
    """Train ``model`` and yield the loss of this rank's slice after every step.

    Without ``average`` the model itself averages, as DistributedDataParallel does.
    """
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD(
        named.values(), lr=task.learning_rate, weight_decay=task.weight_decay
    )
    for step, batch in enumerate(task.batches(seed)):
        optimizer.param_groups[0]["lr"] = task.rate(step)
        optimizer.zero_grad()
        loss = task.loss(model, batch[rank::size])
        loss.backward()  # type: ignore[no-untyped-call]
        if average is not None:
            average({n: p.grad for n, p in named.items() if p.grad is not None})
        optimizer.step()
        yield float(loss.detach())


def final_loss(losses: list[float]) -> float:
    """The mean of the last fifth: one batch is too few to compare."""
    tail = losses[-max(1, len(losses) // 5) :]
    return sum(tail) / len(tail)


# -- handwritten digits ------------------------------------------------------------


def digits() -> Task:
    """Which digit is it? 1797 images of 8 x 8, a hidden layer of 64."""
    images, labels = _digits()

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return functional.cross_entropy(model(images[rows]), labels[rows])

    return Task(
        name="digits",
        make=_classifier,
        loss=loss,
        num_examples=len(labels),
        batch=96,
        steps=800,
        learning_rate=1.0,
        weight_decay=2e-3,
    )


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Images as rows of 64 numbers from 0 to 1, and what they show."""
    from sklearn.datasets import load_digits  # takes seconds on a busy machine

    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(
        found.target
    )


def _classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


# -- text --------------------------------------------------------------------------


def characters(*, width: int = 48, layers: int = 2, context: int = 48) -> Task:
    """Which character comes next? Our own documentation, by a small transformer."""
    text = documentation()

    def loss(model: nn.Module, starts: Tensor) -> Tensor:
        windows = text[starts[:, None] + torch.arange(context + 1)]
        guesses: Tensor = model(windows[:, :-1])
        return functional.cross_entropy(guesses.flatten(0, 1), windows[:, 1:].flatten())

    return Task(
        name="characters",
        make=partial(Transformer, width, layers, context),
        loss=loss,
        num_examples=len(text) - context,
        batch=16,
        steps=1000,
        learning_rate=0.7,
        rise=10,
    )


@cache
def documentation() -> Tensor:
    """The pages in docs/, one after the other, as numbers of characters."""
    text = "".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    raw = text.encode("ascii", errors="replace")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()


class Transformer(nn.Module):
    """Guesses the next character at every place of a text of ``context``."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.character = nn.Embedding(NUM_CHARACTERS, width)
        self.place = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.guess = nn.Linear(width, NUM_CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        """(texts, places) -> (texts, places, NUM_CHARACTERS)."""
        inner = self.blocks(self.character(text) + self.place)
        guesses: Tensor = self.guess(self.norm(inner))
        return guesses


class Block(nn.Module):
    """Attention to what came before, then a layer for every place by itself."""

    HEADS = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.ask = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(texts, places, width) -> the same."""
        texts, places, width = x.shape
        heads = self.ask(self.norms[0](x)).view(texts, places, 3, self.HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        x = x + self.mix(seen.transpose(1, 2).reshape(texts, places, width))
        added: Tensor = x + self.down(functional.gelu(self.up(self.norms[1](x))))
        return added


TASKS: dict[str, Callable[[], Task]] = {"digits": digits, "characters": characters}
