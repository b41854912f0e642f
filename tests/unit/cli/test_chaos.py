"""The loss curve of ``ringleader demo --chaos``, and what counts as agreement."""

from __future__ import annotations

from ringleader.cli.demo.chaos import ChaosResult
from ringleader.cli.demo.chaos_view import ProgressLines
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


def test_every_phase_is_said_and_no_silence_is_long() -> None:
    """Was: nothing for minutes, until the first 50 steps were done."""
    lines, result = ProgressLines(), ChaosResult()
    said = {now_s: lines.line(result, now_s) for now_s in range(31)}
    assert [now_s for now_s, line in said.items() if line] == [0, 10, 20, 30]
    assert said[20] == "importing torch, once for all (20 s)"

    result.phase = "starting 3 nodes"
    assert lines.line(result, 31) == "starting 3 nodes (31 s)", "at once"

    result.phase, result.steps, result.seconds = "training", 450, 10.0
    result.run = dict.fromkeys(range(1, 151), 1.5)
    result.killed_at = [70]
    expected = "step 150 of 450: loss 1.5000, 1 kill, about 20 s left (41 s)"
    assert lines.line(result, 41) == expected
    assert lines.line(result, 42) == ""
    assert lines.status.endswith("(42 s)"), "a terminal shows the moment"
