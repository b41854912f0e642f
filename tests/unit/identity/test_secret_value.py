"""A secret is shown only by an explicit ``reveal``."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from dataclasses import dataclass

import msgspec
import pytest

from ringleader.errors import InternalError
from ringleader.identity.secret_value import Secret

PLAIN = "swordfish-and-chips"


@dataclass(frozen=True)
class Holder:
    name: str
    secret: Secret[str]


@pytest.mark.parametrize(
    "text",
    [
        repr(Secret(PLAIN)),
        str(Secret(PLAIN)),
        f"{Secret(PLAIN)}",
        f"{Secret(PLAIN):>40}",
        f"{Secret(PLAIN)!r}",
        "%s %r" % (Secret(PLAIN), Secret(PLAIN.encode())),  # noqa: UP031
        repr([Secret(PLAIN)]),
        repr(Holder("x", Secret(PLAIN))),
    ],
)
def test_no_way_of_printing_shows_it(text: str) -> None:
    assert PLAIN not in text
    assert "<secret>" in text


def test_whoever_asks_by_name_gets_it() -> None:
    assert Secret(PLAIN).reveal() == PLAIN
    assert Secret(PLAIN.encode()).reveal() == PLAIN.encode()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_not_pickled(protocol: int) -> None:
    with pytest.raises(InternalError, match="neither pickled nor copied"):
        pickle.dumps(Secret(PLAIN), protocol)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_it_is_not_copied(how: object) -> None:
    assert callable(how)
    with pytest.raises(InternalError, match="neither pickled nor copied"):
        how(Secret(PLAIN))


@pytest.mark.parametrize(
    "encode", [json.dumps, msgspec.json.encode, msgspec.msgpack.encode]
)
def test_no_encoder_takes_it(encode: object) -> None:
    assert callable(encode)
    with pytest.raises(TypeError) as caught:
        encode({"secret": Secret(PLAIN)})
    assert PLAIN not in str(caught.value)


def test_a_traceback_with_all_locals_does_not_show_it() -> None:
    secret = Secret(PLAIN[:1] + PLAIN[1:])
    try:
        raise RuntimeError(f"trouble with {secret}")
    except RuntimeError as error:
        trace = traceback.TracebackException.from_exception(error, capture_locals=True)
    shown = "".join(trace.format())
    assert "secret = <secret>" in shown, "the locals are there"
    assert PLAIN not in shown


def test_equal_secrets_are_equal_and_others_are_not() -> None:
    assert Secret("ä") == Secret("ä")
    assert Secret(b"one") != Secret(b"two")
    assert Secret("one") != "one"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Secret("one"))
