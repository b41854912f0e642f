"""Arguments and results as bytes: what survives the way, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ringleader.errors import ConfigError
from ringleader.rpc import registry, values


@registry.register(name="test_values.Job")
class Job(msgspec.Struct):
    name: str
    weight: Tensor
    parts: list[int] = []


@registry.register(name="test_values.Point")
@dataclasses.dataclass
class Point:
    x: float
    job: Job | None = None


@registry.register(name="test_values.Renamed")
class Renamed(msgspec.Struct, rename="camel", tag="renamed"):
    its_weight: Tensor


@registry.register(name="test_values.Row")
class Row(msgspec.Struct, array_like=True):
    x: float
    renamed: Renamed


class Color(enum.StrEnum):
    RED = "red"


def returned(value: object) -> Any:  # noqa: ANN401
    content, tensors, references = values.encode(value)
    return values.decode(content, tensors, references)


def trees() -> st.SearchStrategy[object]:
    numbers = st.booleans() | st.integers() | st.floats(allow_nan=False)
    leaves = st.none() | st.text() | st.binary() | numbers
    keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner)
        ),
        max_leaves=8,
    )


@settings(max_examples=30)
@given(trees())
def test_every_value_comes_back_with_its_types(value: object) -> None:
    assert repr(returned(value)) == repr(value)


def test_tensors_are_taken_out_and_put_back_where_they_were() -> None:
    a, b = torch.arange(3), torch.ones(2, 2)
    content, tensors, _ = values.encode({"a": [a, (b, a)], 7: a})
    assert [id(t) for t in tensors] == [id(a), id(b)], "each one travels once"
    copies = [t.clone() for t in tensors]
    found = values.decode(content, copies, [])
    assert found["a"][0] is found["a"][1][1] is found[7] is copies[0]
    assert found["a"][1][0] is copies[1]
    assert len(content) < 40


def test_registered_classes_come_back_as_they_were() -> None:
    job = Job("train", torch.arange(4), [1, 2])
    found = returned([Point(0.5, job), {3, 4}])
    assert isinstance(found[0], Point)
    assert found[0].job is not None
    assert found[0].job.name == "train"
    assert torch.equal(found[0].job.weight, job.weight)
    assert found[1] == {3, 4}
    row = returned(Row(1.5, Renamed(torch.arange(2))))
    assert isinstance(row, Row)
    assert row.x == 1.5
    assert torch.equal(row.renamed.its_weight, torch.arange(2))


def test_subclasses_of_numbers_and_text_arrive_as_these() -> None:
    found = returned([np.float64(1.5), Color.RED, torch.Size([2, 3]), True])
    assert repr(found) == repr([1.5, "red", (2, 3), True])


class Stranger:
    pass


@dataclasses.dataclass
class Unregistered:
    x: int = 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Stranger(), "Stranger cannot be sent without pickle; send numbers"),
        ([{"a": Unregistered()}], "decorate the class with @rpc.register"),
        (len, "builtin_function_or_method cannot be sent"),
        ([1 << 100_000], "an integer of 100001 bits"),
    ],
    ids=["class", "dataclass", "function", "integer"],
)
def test_what_cannot_be_sent_is_named(value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        values.encode(value)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_depth_of_values_is_bounded() -> None:
    assert returned(nested(60)) == nested(60)
    with pytest.raises(ConfigError, match="nested deeper than 64"):
        values.encode(nested(70))
    with pytest.raises(ValueError, match=r"nested|recursion"):
        values.decode(b"\x92\x00" * 5000 + b"\x01", [], [])


@pytest.mark.parametrize(
    "value",
    [
        [],  # no tag
        [99, 1],
        ["0"],
        [4, 0],  # a tensor that is not there
        [4, -1],
        [4, True],
        [5, 0],
        [3, 1],  # half a pair
        [2, [0]],  # a list cannot be in a set
        [7, "x"],
        [7, "f" * 5000],
        [6, "nobody", {}],
        [6, 5, {}],
        [6, "test_values.Job", 5],
        [6, "test_values.Job", {"name": "x", "weight": [4, 0], "other": 1}],
        [6, "test_values.Job", {"name": 5}],
        [6, "test_values.Job", {"name": "x", "weight": "no tensor"}],
        [6, "test_values.Point", {"x": "text"}],
    ],
)
def test_invalid_content_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        values.decode(msgspec.msgpack.encode(value), [], [])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    try:
        values.decode(data, [torch.ones(1)], [])
    except ValueError:
        return


def test_numbers_keep_their_bits() -> None:
    found = returned([math.nan, math.inf, -0.0, 2**63 - 1, -(2**63), 2**63, -(10**40)])
    assert math.isnan(found[0])
    assert str(found[2]) == "-0.0"
    assert found[3:] == [2**63 - 1, -(2**63), 2**63, -(10**40)]
