"""The built-in task ``chars``: a small transformer predicts the next character."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.tasks.task import DataFiles, Predictions, Split, Task

_WINDOW = 64
"""Characters in one sample."""
_WIDTH, _HEADS, _LAYERS = 64, 4, 2
_TEST_SHARE = 0.1
_MAX_CHARACTERS = 1024
_MAX_BYTES = 1 << 30


class CharTransformer(nn.Module):
    """A causal transformer over characters."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, _WIDTH)
        self.positions = nn.Embedding(_WINDOW, _WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, num_characters)
        # The default normal(0, 1) outweighs the first gradients of so small a model.
        nn.init.normal_(self.characters.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next character at every position."""
        positions = torch.arange(text.shape[1], device=text.device)
        hidden: Tensor = self.characters(text) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.project = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        count, length, width = hidden.shape
        qkv = self.qkv(self.norm1(hidden))
        shape = (count, length, 3, _HEADS, width // _HEADS)
        query, key, value = qkv.view(shape).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        hidden = hidden + self.project(
            attended.transpose(1, 2).reshape(count, length, width)
        )
        out: Tensor = hidden + self.mlp(self.norm2(hidden))
        return out


def task(path: Path) -> Task:
    """Build the task for the text in ``path``."""
    text = _read(path)
    alphabet = sorted(set(text))
    if len(alphabet) > _MAX_CHARACTERS:
        limit = f"{len(alphabet)} different characters, more than {_MAX_CHARACTERS}"
        raise ConfigError(f"task chars: {path} has {limit}")
    numbers = {character: number for number, character in enumerate(alphabet)}
    codes = torch.tensor([numbers[character] for character in text])

    def dataset(split: Split) -> tuple[Tensor, Tensor]:
        return _windows(codes, split)

    return Task(
        name="chars",
        code=Path(__file__).read_text(encoding="utf-8"),
        make_model=lambda: CharTransformer(len(alphabet)),
        make_samples=dataset,
        loss=loss,
        make_optimizer=optimizer,
        predict=predict,
        metrics=metrics,
        classes=tuple(alphabet),
        batch_size=32,
        data=DataFiles(path),
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy of the next character, in nats."""
    text, following = batch
    return functional.cross_entropy(model(text).flatten(0, 1), following.flatten())


def predict(model: nn.Module, batch: Batch) -> Predictions:
    """Predict the likeliest next character at every position."""
    text, following = batch
    return model(text).argmax(dim=-1), following


def metrics(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Return the bits per character, the common metric of such models."""
    return {"bits per character": float(loss(model, batch).detach()) / math.log(2)}


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW, which suits transformers better than SGD."""
    return torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"task chars: {path} has more than {_MAX_BYTES} bytes")
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"task chars: cannot read {path} as UTF-8: {exc}") from exc
    shortest = math.ceil((_WINDOW + 1) / _TEST_SHARE) + 1
    if len(text) < shortest:
        length = f"{len(text)} characters; it needs at least {shortest}"
        raise ConfigError(f"task chars: {path} has {length}")
    return text


def _windows(codes: Tensor, split: Split) -> tuple[Tensor, Tensor]:
    """Cut the text into windows and their next characters; its end is the test."""
    cut = len(codes) - int(len(codes) * _TEST_SHARE)
    part = codes[cut:] if split == "test" else codes[:cut]
    stride = _WINDOW if split == "test" else _WINDOW // 2
    windows = part.unfold(0, _WINDOW + 1, stride)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
