"""``Access``: link tokens, codes and session keys of the dashboard. It does no I/O.

A link token (in the printed link) or a code (for a phone) is exchanged for a session
key, which the page sends in a header. There is no cookie: browsers send cookies of
127.0.0.1 to every port, and so to servers of other users of this machine.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

LINK_S = 600.0
"""Time to open the printed link; a link found later in a log opens nothing."""
CODE_S = 300.0
SESSION_S = 12 * 3600.0
VISITOR_S = 4 * 3600.0
"""A session that was opened by a code."""
MAX_LINKS = 8
MAX_SESSIONS = 64
CODE_ATTEMPTS = 5
"""Wrong codes after which the code is void: a guesser wins 5 times in 10^8."""
ATTEMPT_EVERY_S = 1.0
CODE_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Session:
    """What the holder of a session key may do, and until when."""

    key: str
    until_s: float
    can_stop: bool
    """Whether it may stop jobs. Sessions opened by a code only look."""


@dataclass(frozen=True, slots=True)
class _Link:
    token: str
    until_s: float


@dataclass(slots=True)
class _Code:
    text: str
    until_s: float
    attempts_left: int = CODE_ATTEMPTS


class TooManyAttempts(Exception):
    """Codes were tried too often; the caller answers 429."""


def _new_token() -> str:
    return secrets.token_urlsafe(32)


def _new_code() -> str:
    return f"{secrets.randbelow(10**CODE_DIGITS):0{CODE_DIGITS}}"


def _is_equal(one: str, other: str) -> bool:
    """``other`` comes from JSON, which can hold what UTF-8 cannot: half a surrogate."""
    theirs = other.encode(errors="surrogatepass")
    return hmac.compare_digest(one.encode(), theirs)


@dataclass(slots=True)
class Access:
    """Decides who may look at the dashboard. Only the agent's event loop calls it."""

    new_token: Callable[[], str] = _new_token
    new_code: Callable[[], str] = _new_code
    _links: list[_Link] = field(default_factory=list)
    _sessions: list[Session] = field(default_factory=list)
    _code: _Code | None = None
    _last_attempt_s: float = float("-inf")

    def issue_link(self, now_s: float) -> str:
        """Return a new link token; the oldest is forgotten if there are many."""
        link = _Link(self.new_token(), now_s + LINK_S)
        self._links = [*self._links[-MAX_LINKS + 1 :], link]
        return link.token

    def issue_code(self, now_s: float) -> str:
        """Return a new code, which replaces the last one."""
        self._code = _Code(self.new_code(), now_s + CODE_S)
        return self._code.text

    def open_by_link(self, token: str, now_s: float) -> Session | None:
        """Return a new session if the token is valid."""
        self._links = [each for each in self._links if now_s < each.until_s]
        found = [each for each in self._links if _is_equal(each.token, token)]
        return self._open(now_s, can_stop=True) if found else None

    def open_by_code(self, code: str, now_s: float) -> Session | None:
        """Return a new session if the code is valid.

        Raises ``TooManyAttempts`` if it is asked again within a second.
        """
        if now_s - self._last_attempt_s < ATTEMPT_EVERY_S:
            raise TooManyAttempts
        self._last_attempt_s = now_s
        current = self._code
        if current is None or now_s >= current.until_s or current.attempts_left <= 0:
            return None
        if not _is_equal(current.text, code):
            current.attempts_left -= 1
            return None
        return self._open(now_s, can_stop=False)

    def find(self, key: str, now_s: float) -> Session | None:
        """Return the session of a key, if it is valid."""
        self._sessions = [each for each in self._sessions if now_s < each.until_s]
        found = [each for each in self._sessions if _is_equal(each.key, key)]
        return found[0] if found else None

    def visitors_until_s(self) -> float:
        """Return when the code and all sessions that codes opened are over."""
        ends = [each.until_s for each in self._sessions if not each.can_stop]
        code = [] if self._code is None else [self._code.until_s]
        return max([*ends, *code], default=float("-inf"))

    def _open(self, now_s: float, *, can_stop: bool) -> Session:
        length_s = SESSION_S if can_stop else VISITOR_S
        made = Session(self.new_token(), now_s + length_s, can_stop)
        self._sessions = [*self._sessions[-MAX_SESSIONS + 1 :], made]
        return made
