"""Values of a training state are stored without pickle, or refused by name."""

from __future__ import annotations

import random
from collections import OrderedDict

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringleader.checkpoint import values
from ringleader.errors import ConfigError

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(),
    st.floats(allow_nan=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_comes_back_with_its_types(value: object) -> None:
    restored = values.decode(values.encode(value))
    assert restored == value
    assert repr(restored) == repr(value)


def test_tensors_arrays_and_states_of_generators() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    state = {
        "tensor": tensor,
        "empty": torch.empty(0, 3),
        "scalar": np.float32(0.5),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "python": random.getstate(),
        "set": {1, 2},
    }
    restored = values.decode(values.encode(state))
    assert torch.equal(restored["tensor"], tensor)
    assert restored["tensor"].dtype == torch.bfloat16
    assert restored["empty"].shape == (0, 3)
    for name in ("scalar", "size", "dtype", "python", "set"):
        assert restored[name] == state[name]
        assert type(restored[name]) is type(state[name])
    name, keys, *rest = np.random.get_state()
    again = values.decode(values.encode((name, keys, *rest)))
    assert again[0] == name
    assert np.array_equal(again[1], keys)


def test_what_only_pickle_could_store_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"value\['a'\]\[1\] is a torch.nn.*Linear"):
        values.encode({"a": [0, torch.nn.Linear(1, 1)]})
    with pytest.raises(ConfigError, match="array of objects"):
        values.encode(np.array([object()]))
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ConfigError, match="deeper than 64"):
        values.encode(deep)
    assert values.decode(values.encode(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        values.encode({"a": 1})[:-1],
        b"\x82\xa1\x00\xa1x\xa1v\xc0",
        msgspec.msgpack.encode({"\0": "tensor", "v": ["float32", [1 << 33], b""]}),
        msgspec.msgpack.encode({"\0": "tensor", "v": ["nothing", [1], b"1234"]}),
        msgspec.msgpack.encode({"\0": "tensor", "v": []}),
    ],
)
def test_other_bytes_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an encoded value"):
        values.decode(data)
