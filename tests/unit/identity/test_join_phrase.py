"""Phrases: enough bits, plain words, and errors that name the word."""

from __future__ import annotations

import math
import re
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringleader.errors import ConfigError
from ringleader.identity import join_phrase
from ringleader.identity.phrase_words import WORDS
from ringleader.identity.secret_value import Secret

ZEROS = join_phrase.new(bytes)
"""The phrase of 80 zero bits."""


def drawn_from(raw: bytes) -> join_phrase.JoinPhrase:
    return join_phrase.new(lambda _: raw)


phrases = st.binary(min_size=10, max_size=10).map(drawn_from)


def parse(text: str) -> str:
    return join_phrase.parse(Secret(text)).show()


def outcome(text: str) -> str:
    """The phrase that is understood, or the error."""
    try:
        return parse(text)
    except ConfigError as error:
        return f"error: {error}"


# -- the list ----------------------------------------------------------------------


def test_there_are_1024_plain_words_in_order() -> None:
    assert len(WORDS) == len(set(WORDS)) == 1024
    assert list(WORDS) == sorted(WORDS), "the order is part of the checksum"
    assert all(re.fullmatch("[a-z]{4,8}", word) for word in WORDS)


def test_four_letters_tell_every_word() -> None:
    assert len({word[:4] for word in WORDS}) == 1024


def slips(word: str) -> set[str]:
    """Everything one slip of the finger away that needs no list of letters."""
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    missing = {a + b[1:] for a, b in cuts if b}
    swapped = {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1}
    doubled = {a + b[:1] + b for a, b in cuts if b}
    return (missing | swapped | doubled) - {word}


def test_no_slip_of_the_finger_gives_another_word() -> None:
    known = set(WORDS)
    assert not [(w, s) for w in WORDS for s in slips(w) if s in known]
    holes: dict[str, str] = {}
    for word in WORDS:
        for i in range(len(word)):
            hole = f"{word[:i]}?{word[i + 1 :]}"
            assert hole not in holes, f"{word} and {holes[hole]} differ by one letter"
            holes[hole] = word


# -- making ------------------------------------------------------------------------


def test_a_phrase_carries_at_least_77_bits() -> None:
    assert join_phrase.NUM_RANDOM * math.log2(len(WORDS)) >= 77


def test_every_bit_changes_the_phrase() -> None:
    drawn = [(1 << i).to_bytes(10, "big") for i in range(80)]
    assert len({drawn_from(raw).show() for raw in drawn}) == 80


def test_two_phrases_differ() -> None:
    assert join_phrase.new().show() != join_phrase.new().show()


def test_a_phrase_does_not_show_itself() -> None:
    assert "abacus" in ZEROS.show()
    assert "abacus" not in repr(ZEROS)


def test_phrases_stay_what_they_are() -> None:
    """A changed list or checksum would lock out everybody who has one written down."""
    assert ZEROS.show() == "abacus-" * 8 + "zodiac"


# -- typing ------------------------------------------------------------------------


@settings(deadline=None)
@given(phrases)
def test_what_was_shown_is_understood(made: join_phrase.JoinPhrase) -> None:
    assert parse(made.show()) == made.show()


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        str.title,
        lambda text: f"  {text}\r\n",
        lambda text: text.replace("-", " "),
        lambda text: text.replace("-", " -  "),
        lambda text: text.replace("-", "\t"),
        lambda text: text.replace("-", "\u2013"),
        lambda text: text.replace("-", "\u2011"),
        lambda text: text.replace("-", "\u2014"),
        lambda text: "".join(chr(ord(c) + 0xFEE0) if c != "-" else c for c in text),
    ],
    ids=range(10),
)
def test_how_it_is_written_does_not_matter(change: object) -> None:
    assert callable(change)
    assert parse(change(ZEROS.show())) == ZEROS.show()


@settings(deadline=None)
@given(phrases, st.integers(0, 8), st.sampled_from(WORDS))
def test_a_wrong_word_is_noticed_nearly_always(
    made: join_phrase.JoinPhrase, at: int, wrong: str
) -> None:
    words = made.show().split("-")
    if words[at] == wrong:
        return
    words[at] = wrong
    found = outcome(" ".join(words))
    # One in 1024 passes the checksum, and is still never taken for what it was.
    assert "checksum is wrong" in found or found == "-".join(words)


@settings(deadline=None)
@given(phrases)
def test_swapped_neighbours_are_noticed_nearly_always(
    made: join_phrase.JoinPhrase,
) -> None:
    words = made.show().split("-")
    words[2], words[3] = words[3], words[2]
    found = outcome(" ".join(words))
    assert "two changed places" in found or found == "-".join(words)


def test_the_last_word_must_fit_the_others() -> None:
    fits = [word for word in WORDS if "error" not in outcome("abacus " * 8 + word)]
    assert fits == ["zodiac"]
    with pytest.raises(ConfigError, match="checksum is wrong"):
        parse("abacus " * 7 + "acorn zodiac")


@pytest.mark.parametrize(
    ("typed", "meant"), [("kichten", "kitchen"), ("umbrela", "umbrella")]
)
def test_an_unknown_word_is_named_with_the_nearest(typed: str, meant: str) -> None:
    words = ["abacus", "acorn", typed]
    text = f"word 3, '{typed}', is not in the list; did you mean '{meant}'?"
    with pytest.raises(ConfigError, match=re.escape(text)):
        parse(" ".join(words))


def test_a_phrase_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of your own cannot be used"):
        parse("xyzzy")
    with pytest.raises(ConfigError, match="is not in the list"):
        parse("correct horse battery staple")


def test_a_missing_word_is_counted() -> None:
    with pytest.raises(ConfigError, match="has 9 words, 8 were given"):
        parse(ZEROS.show().partition("-")[2])
    with pytest.raises(ConfigError, match="has 9 words, 0 were given"):
        parse("   ")


def test_a_novel_is_not_read() -> None:
    with pytest.raises(ConfigError, match="at most 512 characters, this has 100000"):
        parse("x" * 100_000)


@settings(deadline=None)
@given(st.text(max_size=600))
def test_whatever_is_typed_is_a_phrase_or_a_config_error(text: str) -> None:
    found = outcome(text)
    assert found.startswith("error: phrase: ") or len(found.split("-")) == 9
    assert len(found) < 400


def test_an_error_does_not_carry_the_phrase_in_its_frames() -> None:
    words = [*join_phrase.new().show().split("-")[:-1], "kichten"]
    shown = locals_of_error(Secret(" ".join(words)))
    assert "typed = <secret>" in shown
    assert "'kichten'" in shown
    assert not [word for word in words[:-1] if word in shown]


def locals_of_error(typed: Secret[str]) -> str:
    """The traceback from here on, with the locals of every frame."""
    try:
        join_phrase.parse(typed)
    except ConfigError as error:
        whole = traceback.TracebackException.from_exception(error, capture_locals=True)
        return "".join(whole.format())
    return ""
