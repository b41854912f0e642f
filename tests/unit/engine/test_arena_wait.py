"""How long a rank polls a signal in shared memory before it sleeps."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringleader.engine.shared_memory import arena, polling
from ringleader.engine.shared_memory.arena import Arena
from ringleader.engine.shared_memory.polling import EAGER_SPINS, IDLE_S, SPINS

PEER = 1
POLL_S = 0.25e-6
FIRST_S = (EAGER_SPINS + SPINS) * POLL_S
"""What every rank polls for."""
YIELD_S = 55e-6
"""What a yield takes beside a thread that keeps Python busy."""


class LateSignal:
    """A signal that is there after some time, or at once for who sleeps for it."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self.time_s = 0.0
        self.sleeps = 0

    def take(self, blocking: bool, timeout_s: float = 0.0) -> bool:
        self.time_s += 0.0 if blocking else POLL_S
        self.sleeps += blocking
        return blocking or self.time_s > self.after_s


@pytest.fixture(params=[False, True], ids=["calm", "crowded"])
def is_crowded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def wait(
    monkeypatch: pytest.MonkeyPatch,
    after_s: float,
    *,
    has_idle_core: bool = True,
    is_crowded: bool = False,
    yield_s: float = 0.0,
) -> LateSignal:
    """Wait for a signal, in its own time; returns it."""
    signal = LateSignal(after_s)

    def relax() -> None:
        signal.time_s += yield_s

    monkeypatch.setattr(polling, "now_s", lambda: signal.time_s)
    monkeypatch.setattr(arena, "are_crowded", lambda: is_crowded)
    monkeypatch.setattr(polling, "relax", relax)
    made = Arena.__new__(Arena)
    made.has_idle_core = has_idle_core
    made._waiter = cast("Any", SimpleNamespace(observer=None))
    made._shm_peers = cast("Any", {PEER: SimpleNamespace(has_semaphores=True)})
    made.wait(signal.take, PEER)
    return signal


@pytest.mark.parametrize("has_idle_core", [False, True])
@pytest.mark.parametrize(
    ("after_s", "is_soon"),
    [(FIRST_S - 2 * POLL_S, True), (FIRST_S + IDLE_S / 2, False)],
)
def test_only_a_rank_with_an_idle_core_polls_for_long(
    monkeypatch: pytest.MonkeyPatch,
    has_idle_core: bool,
    after_s: float,
    is_soon: bool,
    is_crowded: bool,
) -> None:
    signal = wait(
        monkeypatch, after_s, has_idle_core=has_idle_core, is_crowded=is_crowded
    )
    polls_on = has_idle_core and not is_crowded
    assert signal.sleeps == (0 if is_soon or polls_on else 1)


@pytest.mark.parametrize("yield_s", [0.0, YIELD_S])
def test_a_rank_with_an_idle_core_sleeps_in_the_end(
    monkeypatch: pytest.MonkeyPatch, yield_s: float
) -> None:
    signal = wait(monkeypatch, inf, yield_s=yield_s)
    assert signal.sleeps == 1
    first_s = FIRST_S + SPINS / 8 * yield_s
    assert signal.time_s < first_s + IDLE_S + yield_s + 16 * POLL_S
