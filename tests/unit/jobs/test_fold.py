"""Why a job failed is shown before what followed from it, and nothing else changes."""

from __future__ import annotations

import random

import pytest

from ringleader.jobs.client.fold import MAX_HELD_BYTES, ConsequenceFold
from ringleader.jobs.client.output_view import Source

A, B, C = Source("desk", 0), Source("desk", 1), Source("attic", 2)

CAUSE = b"""Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("boom")
ValueError: boom
"""
LOST = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 5, in <module>
[rank0]:     dist.all_reduce(x)
[rank0]: ringleader.errors.PeerLost: rank 1: its process has ended
"""
CHAINED = b"""Traceback (most recent call last):
  File "a.py", line 1, in <module>
ringleader.errors.GroupAborted: rank 1 left with ValueError

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 9, in <module>
RuntimeError: the step failed
"""
LINE = b"%s, in consequence (%d lines: ringleader logs train-1)\n"


def shown(*given: tuple[Source, bytes], pieces: int = 1) -> dict[Source, bytes]:
    """What each rank's output becomes; ``pieces`` of a byte each, or as it was."""
    fold, order = ConsequenceFold("train-1"), list[tuple[Source, bytes]]()
    for source, data in given:
        step = len(data) if pieces == 1 else 1
        for at in range(0, len(data), step):
            order += fold.feed(source, data[at : at + step])
    order += fold.finish()
    found: dict[Source, bytes] = {}
    for source, data in order:
        found[source] = found.get(source, b"") + data
    return found


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_cause_is_shown_and_what_followed_is_one_line(pieces: int) -> None:
    found = shown((A, b"epoch 1\n" + LOST), (C, CHAINED), (B, CAUSE), pieces=pieces)
    assert found[B] == CAUSE
    assert found[A] == b"epoch 1\n" + LINE % (b"PeerLost", 4)
    assert found[C] == LINE % (b"GroupAborted", 9)


def test_the_cause_comes_first_though_it_is_the_last_to_be_printed() -> None:
    fold = ConsequenceFold("train-1")
    assert list(fold.feed(A, LOST)) == []
    assert list(fold.feed(B, CAUSE)) == [(B, CAUSE)]
    assert [source for source, _ in fold.finish()] == [A]


def test_without_another_cause_the_first_is_shown() -> None:
    """A machine that lost its power prints nothing."""
    found = shown((A, LOST), (C, CHAINED))
    assert found[A] == LOST
    assert found[C] == LINE % (b"GroupAborted", 9)


def test_the_error_of_a_program_that_goes_on_is_shown_before_its_next_line() -> None:
    fold = ConsequenceFold("train-1")
    assert list(fold.feed(A, LOST)) == []
    assert list(fold.feed(A, b"goes on\n")) == [(A, LOST + b"goes on\n")]
    assert list(fold.feed(B, CAUSE)) == [(B, CAUSE)]
    assert list(fold.feed(A, LOST)) == []
    again = LINE % (b"PeerLost", 4) + b"again\n"
    assert list(fold.feed(A, b"again\n")) == [(A, again)]
    assert list(fold.finish()) == []


@pytest.mark.parametrize("pieces", [1, 2])
def test_all_else_is_shown_as_it_was(pieces: int) -> None:
    """Progress bars at once, tracebacks that were caught, texts that look like one."""
    other = CAUSE + b"\nDuring handling of the above exception, another exception "
    other += b"occurred:\n\n" + LOST
    for data in (
        b"10 %\r20 %\r",
        CAUSE + b"goes on\n",
        b"a Traceback (most recent call last):\n  is no traceback\n",
        b"Traceback (most recent call last):\n  File",
        b"[rank7]: says\n[rank",
        b"\xff\xfe\n\n\n",
        other[: len(CAUSE) + 20] + b"\n",
    ):
        assert shown((A, data), pieces=pieces) == {A: data}
    assert list(ConsequenceFold("x").feed(A, b"10 %\r")) == [(A, b"10 %\r")]


def test_a_very_long_traceback_is_not_held() -> None:
    long = b"Traceback (most recent call last):\n" + b"  deep\n" * MAX_HELD_BYTES
    fold = ConsequenceFold("x")
    assert sum(len(data) for _, data in fold.feed(A, long)) >= len(long) - 100


def test_however_it_is_cut_nothing_is_shown_twice_or_lost() -> None:
    chance = random.Random(1)
    lines = [b"a\n", CAUSE, b"b\r", b"\n", b"[rank1]: c\n", b"Trace\n", b"\n"]
    for _ in range(200):
        whole = data = b"".join(chance.choices(lines, k=8))
        fold, out = ConsequenceFold("x"), b""
        while data:
            cut = chance.randint(1, len(data))
            out += b"".join(piece for _, piece in fold.feed(A, data[:cut]))
            data = data[cut:]
        out += b"".join(piece for _, piece in fold.finish())
        assert out == whole
