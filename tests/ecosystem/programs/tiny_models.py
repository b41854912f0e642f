"""Language models and texts of a few kilobytes, made without a model hub."""

from __future__ import annotations

from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
)

TEXT = "the a cat dog bird sees likes chases big small red blue and or not"
WORDS = TEXT.split()


def causal_model() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def token_rows(count: int = 32, length: int = 12) -> Dataset:
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(3, 64, (count, length), generator=generator).tolist()
    return Dataset.from_dict({"input_ids": rows, "labels": rows})


def tokenizer(folder: Path) -> BertTokenizerFast:
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    file = folder / "vocab.txt"
    file.write_text("\n".join([*special, *WORDS]))
    return BertTokenizerFast(vocab_file=str(file))


def save_encoder(folder: Path) -> str:
    """Save a sentence encoder that libraries can load by its path."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer(folder).save_pretrained(folder)
    return str(folder)


def sentences(count: int) -> list[str]:
    generator = torch.Generator().manual_seed(3)
    picks = torch.randint(len(WORDS), (count, 5), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in row) for row in picks]
