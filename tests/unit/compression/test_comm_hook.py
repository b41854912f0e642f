"""Communication hooks without a process group."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined] # is public
from torch.futures import Future

from ringleader import compression
from ringleader.compression.scheme import NAMES
from ringleader.errors import ConfigError


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_has_what_ddp_asks_for(name: str) -> None:
    """DDP compares annotations with types, so they must not be strings."""
    hook = compression.hook(name)
    signature = inspect.signature(hook)
    assert signature.parameters["bucket"].annotation is GradBucket
    assert signature.return_annotation == Future[Tensor]
    assert hook.__name__ == hook.__qualname__ == f"ringleader {name}"


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown scheme 'int3'; choose one of: none, bf16"
    ):
        compression.hook("int3")


@pytest.mark.parametrize("momentum", [0.0, 1.0, -0.5, float("nan")])
def test_momentum_is_a_share(momentum: float) -> None:
    with pytest.raises(ConfigError, match="momentum must be above 0 and below 1"):
        compression.hook("topk:0.01", momentum=momentum)


@pytest.mark.parametrize(
    ("name", "feedback"), [("int8", True), ("powersgd:2", True), ("topk:0.1", False)]
)
def test_momentum_is_for_sparse_schemes_with_feedback(
    name: str, feedback: bool
) -> None:
    with pytest.raises(ConfigError, match="needs topk or randomk, with feedback"):
        compression.hook(name, feedback=feedback, momentum=0.9)


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number >= 0, not -1"):
        compression.compressor("randomk:0.1", seed=-1)


def test_without_a_process_group_it_says_so() -> None:
    with pytest.raises(ConfigError, match="there is no default group"):
        compression.compressor("int8").average(None, {"a": torch.ones(3)})


@pytest.mark.parametrize("name", ["onebit", "topk:0.01", "powersgd:2", "none"])
def test_a_sharded_model_takes_what_needs_no_feedback(name: str) -> None:
    with pytest.raises(ConfigError, match=f"int8-stochastic, auto, not '{name}'"):
        compression.fsdp(nn.Linear(2, 2), name)


def test_a_model_that_is_not_sharded_is_refused() -> None:
    with pytest.raises(ConfigError, match="not sharded; call fully_shard"):
        compression.fsdp(nn.Linear(2, 2), "int8")
