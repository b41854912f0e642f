"""``ringleader.parallelize`` on Hugging Face's models, after their own plans.

Each strategy is compared with one process in float64, with the batches of all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from report import report
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

import ringleader

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": None,
}
STEPS = 3


def main() -> None:
    dist.init_process_group("ringleader")
    found = {}
    for name, make in (("llama", llama), ("tied", tied), ("qwen3", qwen3)):
        for strategy in ("tensor", "fsdp"):
            found[f"{name}, {strategy}"] = compare(make, strategy)
    report(**found)
    dist.destroy_process_group()


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def tied() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))


def qwen3() -> nn.Module:
    """Its attention normalizes each head: weights that every rank needs whole."""
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def rows(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, 61, (3, 9), generator=generator)


def compare(make: Any, strategy: str) -> str:
    """Train; return which part of the parameters was sharded."""
    torch.manual_seed(1)
    model = make()
    torch.manual_seed(1)
    alone = make().double()
    trainer = ringleader.parallelize(model, strategy, optimizer=sgd, clip=1.0)
    expected = sgd(alone.parameters())
    for step in range(STEPS):
        mine = rows(trainer.data_rank, step)
        loss = trainer.step(input_ids=mine, labels=mine)
        every = torch.cat([rows(rank, step) for rank in range(trainer.data_size)])
        expected.zero_grad()
        wanted = alone(input_ids=every, labels=every).loss
        wanted.backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        expected.step()
        assert abs(float(loss) - float(wanted)) < 1e-4, (strategy, step, loss, wanted)
    sharded = 0
    for name, parameter in trainer.model.named_parameters():
        value = parameter.detach()
        if isinstance(value, DTensor):
            sharded += value.to_local().numel() < value.numel()
            value = value.full_tensor()
        error = float((value.double() - alone.get_parameter(name)).abs().max())
        assert error < 1e-5, (strategy, name, error)
    return f"{sharded} of {len(list(alone.parameters()))}"


if __name__ == "__main__":
    main()
