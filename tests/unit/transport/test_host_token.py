"""What tells ranks of one host, and one member of a group from another."""

from __future__ import annotations

from ringleader.transport.host_token import host_token, new_incarnation


def test_the_token_of_a_host_does_not_change() -> None:
    first = host_token()
    host_token.cache_clear()
    assert host_token() == first
    assert len(first) == 16
    assert any(first), "zero stands for a rank that does not share memory"


def test_incarnations_never_repeat() -> None:
    made = {new_incarnation() for _ in range(100)}
    assert len(made) == 100
    assert {len(each) for each in made} == {16}
