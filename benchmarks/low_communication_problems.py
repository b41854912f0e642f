"""Small problems on which ways to train with little communication are compared."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ringleader.paramserver.tasks import digits

WINDOW = 64
_FEW_CHARACTERS, _MANY_CHARACTERS = 3_000_000, 24_000_000
_NUM_TESTS = 2048


@dataclass(frozen=True)
class Problem:
    """A model, its data, and what is reported of it."""

    make_model: Callable[[], nn.Module]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    """Samples of one step of all workers together."""
    reports_accuracy: bool = False
    device: str = "cpu"

    def on(self, device: str) -> Problem:
        """Return the same problem with its data and models on a device."""

        def moved(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0].to(device), pair[1].to(device)

        return replace(
            self, train=moved(self.train), test=moved(self.test), device=device
        )

    def seeded_model(self, seed: int) -> nn.Module:
        """Return a new model, the same one for the same seed."""
        torch.manual_seed(seed)
        return self.make_model().to(self.device)

    def loss(self, model: nn.Module, chosen: Tensor) -> Tensor:
        """Return the mean loss of some samples."""
        inputs, targets = self.train
        return functional.cross_entropy(model(inputs[chosen]), targets[chosen])

    @torch.no_grad()
    def result(self, model: nn.Module) -> float:
        """Return the test loss of a model, or its accuracy in percent."""
        total = 0.0
        inputs, targets = self.test
        for i in range(0, len(inputs), 256):
            x, y = inputs[i : i + 256], targets[i : i + 256]
            found = model(x)
            if self.reports_accuracy:
                total += 100 * float((found.argmax(1) == y).sum())
            else:
                total += float(functional.cross_entropy(found, y)) * len(x)
        return total / len(inputs)


class CharTransformer(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, characters: int, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(WINDOW, width)
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        nn.init.normal_(self.characters.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.layers(self.characters(text) + self.positions.weight)
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

    def forward(self, hidden: Tensor) -> Tensor:
        count, length, _ = hidden.shape
        parts = self.qkv(self.norm1(hidden)).view(count, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        hidden = hidden + self.project(mixed.transpose(1, 2).reshape(hidden.shape))
        out: Tensor = hidden + self.down(functional.relu(self.up(self.norm2(hidden))))
        return out


def _sources() -> Iterator[Path]:
    """Yield the sources of Python's standard library, then those of torch."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    yield from sorted(stdlib.glob("*.py")) + sorted(stdlib.glob("*/*.py"))
    yield from sorted(Path(torch.__file__).parent.rglob("*.py"))


def _characters(
    width: int, layers: int, batch: int, max_characters: int = _FEW_CHARACTERS
) -> Problem:
    """Predict the next character of sources in Python."""
    parts, length = [], 0
    for file in _sources():
        if length >= max_characters:
            break
        parts.append(file.read_text(encoding="utf-8", errors="ignore"))
        length += len(parts[-1])
    text = "".join(parts)[:max_characters]
    raw = np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
    alphabet, codes = np.unique(raw, return_inverse=True)
    windows = torch.from_numpy(codes.astype(np.int64)).unfold(0, WINDOW + 1, WINDOW)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))
    chosen, held = windows[order[_NUM_TESTS:]], windows[order[:_NUM_TESTS]]
    return Problem(
        lambda: CharTransformer(len(alphabet), width, layers),
        (chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()),
        (held[:, :-1].contiguous(), held[:, 1:].contiguous()),
        batch=batch,
    )


def _digits() -> Problem:
    """Tell handwritten digits apart with a perceptron of one hidden layer."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    train, test = digits.dataset("train"), digits.dataset("test")
    return Problem(make, train, test, batch=32, reports_accuracy=True)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "characters": lambda: _characters(64, 2, 64),
    "few-characters": lambda: _characters(32, 1, 32),
    "many-characters": lambda: _characters(128, 4, 256, _MANY_CHARACTERS),
    "digits": _digits,
}
