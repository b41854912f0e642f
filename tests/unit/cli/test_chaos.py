"""The loss curve of ``ringleader demo --chaos``, and what counts as agreement."""

from __future__ import annotations

from ringleader.cli.demo.chaos import ChaosResult
from ringleader.cli.demo.loss_curve import KILL, REFERENCE, RUN, draw


def test_the_run_is_drawn_over_the_reference() -> None:
    reference = {step: 1 / step for step in range(1, 101)}
    run = {step: loss for step, loss in reference.items() if step <= 50}
    text = draw(reference, run, [50], width=50, height=8).plain
    rows = text.splitlines()
    assert rows[0].startswith("      1 │" + RUN)
    assert text.count(KILL) == 2, "one kill, and the legend"
    assert all(RUN not in row[9 + 25 :] for row in rows[:8]), "it is halfway"
    assert REFERENCE in rows[7][9 + 25 :]
    assert max(len(row) for row in rows[:9]) == 59


def test_curves_without_points_or_height_are_drawn_too() -> None:
    assert RUN in draw({}, {}, []).plain
    assert RUN in draw({1: 0.5}, {1: 0.5}, [0]).plain
    assert RUN in draw({1: float("nan")}, {1: 0.0}, [1]).plain


def test_the_exit_status_says_whether_the_curves_agree() -> None:
    curve = {1: 2.0, 2: 1.0, 3: 0.5}
    near = {step: loss + 1e-6 for step, loss in curve.items()}
    assert not ChaosResult(reference=curve, run=near).failures()
    far = {**near, 2: 1.002}
    assert "differs by 2.0e-03" in ChaosResult(reference=curve, run=far).failures()[0]
    short = {1: 2.0, 2: 1.0}
    found = ChaosResult(reference=curve, run=short).failures()
    assert found == ["the run had 2 steps instead of 3"]
    nodes = ChaosResult(reference=curve, run=curve, disagreements=1)
    assert "disagree" in nodes.failures()[0]
