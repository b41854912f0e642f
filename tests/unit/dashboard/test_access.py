"""Links, codes and sessions: how long they open the dashboard, and how often."""

from __future__ import annotations

import pytest

from ringleader.dashboard.access import (
    ATTEMPT_EVERY_S,
    CODE_ATTEMPTS,
    CODE_S,
    LINK_S,
    MAX_LINKS,
    SESSION_S,
    VISITOR_S,
    Access,
    TooManyAttempts,
)


def test_a_link_opens_sessions_until_its_time_is_over() -> None:
    access = Access()
    token = access.issue_link(0.0)
    session = access.open_by_link(token, LINK_S - 1)
    assert session is not None
    assert session.can_stop
    assert access.find(session.key, LINK_S + 1) == session
    assert access.open_by_link(token, LINK_S) is None
    assert access.open_by_link("", 1.0) is None
    assert access.open_by_link(session.key, 1.0) is None, "a key is not a link"


def test_a_session_ends_by_itself() -> None:
    access = Access()
    session = access.open_by_link(access.issue_link(0.0), 0.0)
    assert session is not None
    assert access.find(session.key, SESSION_S - 1) is not None
    assert access.find(session.key, SESSION_S) is None
    assert access.find("", 1.0) is None


def test_old_links_are_forgotten_when_many_are_made() -> None:
    access = Access()
    tokens = [access.issue_link(0.0) for _ in range(MAX_LINKS + 1)]
    assert access.open_by_link(tokens[0], 1.0) is None
    assert access.open_by_link(tokens[1], 1.0) is not None


def test_a_code_opens_a_session_that_only_looks() -> None:
    access = Access(new_code=lambda: "01234567")
    assert access.open_by_code("01234567", 0.0) is None, "none was made"
    access.open_by_link(access.issue_link(0.0), 0.0)
    assert access.visitors_until_s() < 0.0
    access.issue_code(10.0)
    assert access.visitors_until_s() == 10.0 + CODE_S
    session = access.open_by_code("01234567", 20.0)
    assert session is not None
    assert not session.can_stop
    assert access.visitors_until_s() == session.until_s == 20.0 + VISITOR_S
    assert access.open_by_code("01234567", 10.0 + CODE_S) is None


def test_codes_cannot_be_guessed() -> None:
    access = Access(new_code=lambda: "01234567")
    access.issue_code(0.0)
    now_s = 0.0
    for _ in range(CODE_ATTEMPTS):
        assert access.open_by_code("7654321", now_s) is None
        with pytest.raises(TooManyAttempts):
            access.open_by_code("01234567", now_s + ATTEMPT_EVERY_S / 2)
        now_s += ATTEMPT_EVERY_S
    assert access.open_by_code("01234567", now_s) is None, "the code is void now"
    access.issue_code(now_s)
    assert access.open_by_code("01234567", now_s + ATTEMPT_EVERY_S) is not None


def test_tokens_are_long_and_codes_have_eight_digits() -> None:
    access = Access()
    assert len(access.issue_link(0.0)) >= 43
    code = access.issue_code(0.0)
    assert len(code) == 8
    assert code.isdecimal()
