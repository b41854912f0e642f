"""One key on three machines, one of which restarts while the others are cut off."""

from __future__ import annotations

from ringleader.simulation.membership.seeded_run import simulate


def test_a_restart_among_copies_is_no_copy() -> None:
    """A claim against a holder that is gone proves nothing against the next one."""
    assert simulate(242, size=8).failure is None
