"""Join phrases: eight words that carry 80 bits, and one that detects typing errors.

Phrases are generated and never chosen by people: everything that a stranger sees of a
cluster can be used to test guesses offline, and only the 80 bits make that infeasible.
"""

from __future__ import annotations

import difflib
import re
import secrets
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from ringleader.errors import ConfigError
from ringleader.identity.phrase_words import WORDS
from ringleader.identity.secret_value import Secret

NUM_RANDOM = 8
"""Random words, 10 bits each. 77 bits are enough, and seven words give only 70."""

NUM_WORDS = NUM_RANDOM + 1
MAX_CHARACTERS = 512
"""Longer than any phrase with generous spacing; longer input is not parsed."""

_INDEX = {word: index for index, word in enumerate(WORDS)}
_GAP = re.compile(r"[\s\-\u2010-\u2015\u2212]+")
"""Spaces, and whatever phones and word processors make of a hyphen."""
_SHOWN_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class JoinPhrase:
    """A phrase whose words and checksum are valid."""

    text: Secret[str]
    """The words, lower case, separated by single spaces."""

    def show(self) -> str:
        """Return the words joined by hyphens, for the one screen that may show them."""
        return self.text.reveal().replace(" ", "-")


def new(entropy: Callable[[int], bytes] = secrets.token_bytes) -> JoinPhrase:
    """Return a new random phrase."""
    number = int.from_bytes(entropy(NUM_RANDOM * 10 // 8), "big")
    words = [WORDS[number >> 10 * i & 1023] for i in range(NUM_RANDOM)]
    return JoinPhrase(Secret(" ".join([*words, _checksum(words)])))


def parse(typed: Secret[str]) -> JoinPhrase:
    """Parse what somebody typed; ConfigError says which word is wrong, and no more.

    No variable of a frame that an error passes through holds the plain text.
    """
    trouble = _trouble(typed.reveal())
    if trouble:
        raise ConfigError(f"phrase: {trouble}")
    return JoinPhrase(Secret(_normalise(typed.reveal())))


def _normalise(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return _GAP.sub(" ", plain).strip()


def _checksum(words: list[str]) -> str:
    digest = sha256(b"ringleader/v1/phrase\0" + " ".join(words).encode()).digest()
    return WORDS[int.from_bytes(digest[:2], "big") & 1023]


def _trouble(text: str) -> str:
    """Return what is wrong with a phrase; empty if nothing."""
    if len(text) > MAX_CHARACTERS:
        return f"at most {MAX_CHARACTERS} characters, this has {len(text)}"
    words = _normalise(text).split()
    unknown = [(i, word) for i, word in enumerate(words, 1) if word not in _INDEX]
    if unknown:
        return _unknown(*unknown[0])
    if len(words) != NUM_WORDS:
        return f"it has {NUM_WORDS} words, {len(words)} were given"
    if words[-1] != _checksum(words[:-1]):
        return (
            "all words are known, but the checksum is wrong: a word was replaced, or "
            "two changed places; compare it with the first screen"
        )
    return ""


def _unknown(position: int, word: str) -> str:
    near = difflib.get_close_matches(word[:_SHOWN_CHARACTERS], WORDS, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else ("phrases are made by 'ringleader init'; one of your own cannot be used")
    )
    return f"word {position}, {word[:_SHOWN_CHARACTERS]!r}, is not in the list; {hint}"
