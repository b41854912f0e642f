"""The next character of a text: a small transformer, trained on a file of yours."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ringleader.errors import ConfigError
from ringleader.paramserver.tasks.samples import Batch
from ringleader.paramserver.tasks.task import Predictions, Split, Task

_WINDOW = 64
"""Characters that the model sees at once."""
_WIDTH, _HEADS, _LAYERS = 64, 4, 2
_TEST_SHARE = 0.1
_MAX_CHARACTERS = 1024
_MAX_BYTES = 1 << 30


class Writer(nn.Module):
    """A transformer that looks back only."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, _WIDTH)
        self.places = nn.Embedding(_WINDOW, _WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, num_characters)
        # The usual normal(0, 1) drowns the first gradients of so small a model.
        nn.init.normal_(self.characters.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        """Scores of every possible next character, at every place."""
        places = torch.arange(text.shape[1], device=text.device)
        hidden: Tensor = self.characters(text) + self.places(places)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: Tensor = self.scores(self.norm(hidden))
        return scores


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(_WIDTH)
        self.asks = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.answers = nn.Linear(_WIDTH, _WIDTH)
        self.between = nn.LayerNorm(_WIDTH)
        self.thinks = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        count, length, width = hidden.shape
        asked = self.asks(self.before(hidden))
        shape = (count, length, 3, _HEADS, width // _HEADS)
        query, key, value = asked.view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        hidden = hidden + self.answers(
            seen.transpose(1, 2).reshape(count, length, width)
        )
        out: Tensor = hidden + self.thinks(self.between(hidden))
        return out


def task(path: Path) -> Task:
    """The task ``chars`` on the text in ``path``."""
    text = _read(path)
    alphabet = sorted(set(text))
    if len(alphabet) > _MAX_CHARACTERS:
        limit = f"{len(alphabet)} different characters; {_MAX_CHARACTERS} go"
        raise ConfigError(f"task chars: {path} has {limit}")
    numbers = {character: number for number, character in enumerate(alphabet)}
    codes = torch.tensor([numbers[character] for character in text])

    def dataset(split: Split) -> tuple[Tensor, Tensor]:
        return _windows(codes, split)

    return Task(
        name="chars",
        code=Path(__file__).read_text(encoding="utf-8"),
        make_model=lambda: Writer(len(alphabet)),
        make_samples=dataset,
        loss=loss,
        make_optimizer=optimizer,
        predict=predict,
        metrics=metrics,
        classes=tuple(alphabet),
        batch_size=32,
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of the next character, in nats."""
    text, following = batch
    return functional.cross_entropy(model(text).flatten(0, 1), following.flatten())


def predict(model: nn.Module, batch: Batch) -> Predictions:
    """The likeliest next character at every place."""
    text, following = batch
    return model(text).argmax(dim=-1), following


def metrics(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Bits per character: what people compare models of text by."""
    return {"bits per character": float(loss(model, batch).detach()) / math.log(2)}


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Transformers want Adam."""
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
        length = f"{len(text)} characters; {shortest} are the least"
        raise ConfigError(f"task chars: {path} has {length}")
    return text


def _windows(codes: Tensor, split: Split) -> tuple[Tensor, Tensor]:
    """Windows and, place by place, what follows; the end of the text is the test."""
    cut = len(codes) - int(len(codes) * _TEST_SHARE)
    part = codes[cut:] if split == "test" else codes[:cut]
    stride = _WINDOW if split == "test" else _WINDOW // 2
    windows = part.unfold(0, _WINDOW + 1, stride)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
