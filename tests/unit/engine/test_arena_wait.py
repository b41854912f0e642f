"""How long a rank polls a signal in shared memory before it sleeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringleader.engine.shared_memory import arena
from ringleader.engine.shared_memory.arena import EAGER_SPINS, IDLE_SPINS, SPINS, Arena

PEER = 1


class LateSignal:
    """A signal that comes after some polls, or at once to who sleeps for it."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.polls = self.sleeps = 0

    def take(self, blocking: bool, timeout_s: float = 0.0) -> bool:
        self.sleeps += blocking
        self.polls += not blocking
        return blocking or self.polls > self.after


def waiting(*, has_idle_core: bool) -> Arena:
    made = Arena.__new__(Arena)
    made.has_idle_core = has_idle_core
    made._waiter = cast("Any", SimpleNamespace(observer=None))
    made._shm_peers = cast("Any", {PEER: SimpleNamespace(has_semaphores=True)})
    return made


@pytest.fixture(params=[False, True], ids=["calm", "crowded"])
def is_crowded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(arena, "are_crowded", lambda: request.param)
    monkeypatch.setattr(arena, "relax", lambda: None)
    return bool(request.param)


@pytest.mark.parametrize("has_idle_core", [False, True])
@pytest.mark.parametrize(
    ("after", "is_soon"),
    [(EAGER_SPINS + SPINS - 1, True), (EAGER_SPINS + SPINS + IDLE_SPINS // 2, False)],
)
def test_only_a_rank_with_an_idle_core_polls_for_long(
    has_idle_core: bool, after: int, is_soon: bool, is_crowded: bool
) -> None:
    signal = LateSignal(after)
    waiting(has_idle_core=has_idle_core).wait(signal.take, PEER)
    polls_on = has_idle_core and not is_crowded
    assert signal.sleeps == (0 if is_soon or polls_on else 1)


def test_a_rank_with_an_idle_core_sleeps_in_the_end(is_crowded: bool) -> None:
    signal = LateSignal(10 * IDLE_SPINS)
    waiting(has_idle_core=True).wait(signal.take, PEER)
    assert signal.sleeps == 1
    assert signal.polls <= EAGER_SPINS + SPINS + IDLE_SPINS
