"""The names of schemes."""

from __future__ import annotations

import pytest

from ringleader.compression.scheme import NAMES, Method, parse
from ringleader.errors import ConfigError


@pytest.mark.parametrize("name", NAMES)
def test_every_name_that_is_listed_is_understood(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    ("name", "method", "number"),
    [
        ("none", Method.NONE, None),
        ("int8-stochastic", Method.CODEC, None),
        ("topk:0.01", Method.TOP, 0.01),
        ("topk-exact:1", Method.TOP, 1.0),
        ("randomk:1e-3", Method.RANDOM, 0.001),
        ("powersgd:4", Method.LOW_RANK, 4),
    ],
)
def test_a_name_says_the_method_and_its_number(
    name: str, method: Method, number: float | None
) -> None:
    scheme = parse(name)
    assert scheme.method is method
    if method is Method.LOW_RANK:
        assert scheme.rank == number
    elif number is not None:
        assert scheme.ratio == number
    assert scheme.is_exact == name.startswith("topk-exact")
    assert (scheme.codec == name) == (method is Method.CODEC)


RATIO = "above 0 and at most 1, as in"
RANK = "a whole number from 1 to 256, as in 'powersgd:2'"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("int3", "unknown scheme 'int3'; choose one of: none, bf16, fp16, int8, "),
        ("", "unknown scheme ''"),
        ("INT8", "unknown scheme 'INT8'"),
        ("int8:4", "'int8' takes no number"),
        ("none:", "'none' takes no number"),
        ("topk", f"{RATIO} 'topk:0.01'"),
        ("topk:", RATIO),
        ("topk:0", RATIO),
        ("topk:-0.1", RATIO),
        ("topk:1.01", RATIO),
        ("topk:nan", RATIO),
        ("topk:inf", RATIO),
        ("topk-exact:2", f"{RATIO} 'topk-exact:0.01'"),
        ("randomk:half", f"{RATIO} 'randomk:0.01'"),
        ("powersgd", RANK),
        ("powersgd:0", RANK),
        ("powersgd:-1", RANK),
        ("powersgd:1.5", RANK),
        ("powersgd:257", RANK),
        ("powersgd:\u0662", RANK),
    ],
)
def test_what_makes_no_sense_is_answered_with_what_would(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(name)
    assert says in str(caught.value)


def test_a_scheme_is_a_name() -> None:
    with pytest.raises(ConfigError, match="a scheme is a string, not 8"):
        parse(8)  # type: ignore[arg-type]
