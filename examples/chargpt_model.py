"""The model of chargpt.py, and the text that it learns."""

from __future__ import annotations

import argparse
import itertools
import random

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset


class Embedding(nn.Module):
    """A vector for each character, plus one for its position."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)

    def forward(self, text: Tensor) -> Tensor:
        at = torch.arange(text.shape[1], device=text.device)
        return self.character(text) + self.position(at)


class Block(nn.Module):
    """Attention to the characters before, then a small network for each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def make_model(characters: int, options: argparse.Namespace) -> nn.Sequential:
    """Layers in a row, so that a pipeline can be cut between any two.

    nanoGPT's model of characters has 6 layers, 6 heads, width 384 and context 256.
    """
    return nn.Sequential(
        Embedding(characters, options.context, options.width),
        *(Block(options.width, options.heads) for _ in range(options.layers)),
        nn.LayerNorm(options.width),
        nn.Linear(options.width, characters, bias=False),
    )


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"


def sums_in_words(sentences: int = 3000) -> str:
    """Return sentences that are true; a model has learned if it writes such."""
    words, chance = _WORDS.split(), random.Random(0)
    pairs = [(a, b) for a, b in itertools.product(range(13), repeat=2) if a + b < 13]
    chosen = (chance.choice(pairs) for _ in range(sentences))
    return "".join(
        f"{words[a]} plus {words[b]} is {words[a + b]}.\n" for a, b in chosen
    )


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text, each with the character that follows every one of its."""

    def __init__(self, text: str, context: int) -> None:
        self.characters = sorted(set(text))
        self.context = context
        self._codes = torch.tensor([self.characters.index(c) for c in text])

    def __len__(self) -> int:
        return (len(self._codes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * self.context
        piece = self._codes[begin : begin + self.context + 1]
        return piece[:-1], piece[1:]
