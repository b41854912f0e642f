"""Which tensors a prepared call accepts, and what tells two kinds of calls apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ringleader.groups.prepared_calls import Kind, kind_of, kind_of_one, kind_of_two

PLAIN = torch.ones(6)
UNFIT: dict[str, Any] = {
    "not contiguous": torch.ones(12)[::2],
    "transposed": torch.ones(2, 3).t(),
    "empty": torch.ones(0),
    "negative bit": torch._neg_view(torch.ones(6)),
    "conjugate bit": torch.ones(6, dtype=torch.complex64).conj(),
    "sparse": torch.ones(6).to_sparse(),
    "without memory": torch.ones(6, device="meta"),
    "no tensor": 3,
    "nothing": None,
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=list(UNFIT))
def test_a_tensor_whose_memory_is_not_its_values_needs_the_general_path(
    unfit: Tensor,
) -> None:
    assert kind_of_one("x", None, unfit) is None
    assert kind_of_two("x", None, PLAIN, unfit) is None
    assert kind_of_two("x", None, unfit, PLAIN) is None
    assert kind_of("x", None, PLAIN, [PLAIN, unfit]) is None


def test_tensors_of_different_dtypes_need_the_general_path() -> None:
    assert kind_of_two("x", None, PLAIN, PLAIN.double()) is None
    assert kind_of("x", None, PLAIN, [PLAIN, PLAIN.double()]) is None


def test_parameters_and_complex_numbers_are_accepted() -> None:
    for tensor in (torch.nn.Parameter(PLAIN), torch.ones(6, dtype=torch.complex64)):
        assert kind_of_one("x", None, tensor) is not None
        assert kind_of_two("x", None, tensor, tensor) is not None


def test_kinds_differ_in_all_that_a_prepared_call_depends_on() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)

    def at(count: int, dtype: torch.dtype) -> Tensor:
        return memory.view(dtype)[:count]

    kinds: list[Kind | None] = [
        *(kind_of_one("a", other, at(4, torch.float32)) for other in ("sum", "max", 0)),
        kind_of_one("b", "sum", at(4, torch.float32)),
        kind_of_one("a", "sum", at(5, torch.float32)),
        kind_of_one("a", "sum", at(4, torch.int32)),
        kind_of_two("a", "sum", at(4, torch.int32), at(4, torch.int32)),
        kind_of_two("a", "sum", at(4, torch.int32), at(2, torch.int32)),
        kind_of_two("a", "sum", at(2, torch.int32), at(4, torch.int32)),
        kind_of("a", "sum", at(2, torch.int32), [at(4, torch.int32)]),
        kind_of("a", "sum", [at(2, torch.int32)], at(4, torch.int32)),
        kind_of("a", "sum", at(2, torch.int32), [at(2, torch.int32)] * 2),
    ]
    keys = {kind[0] for kind in kinds if kind is not None}
    assert len(keys) == len(kinds)
    assert kind_of("a", "sum", PLAIN, PLAIN) == kind_of_two("a", "sum", PLAIN, PLAIN)
