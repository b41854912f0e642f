"""The table of communication hooks."""

from __future__ import annotations

import inspect

import pytest
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined] # is public
from torch.futures import Future

from ringleader import compression
from ringleader.errors import ConfigError


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_hook_has_the_signature_that_ddp_asks_for(name: str) -> None:
    """It compares annotations with types, so they may not be strings."""
    signature = inspect.signature(compression.hook(name))
    assert signature.parameters["bucket"].annotation is GradBucket
    assert signature.return_annotation == Future[Tensor]


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no hook 'int3'; there are bf16, fp16"):
        compression.hook("int3")
