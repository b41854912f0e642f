"""``ringleader`` alone: what to type next, in each situation."""

from __future__ import annotations

import pytest

from ringleader.cli.main import SUMMARIES
from ringleader.cli.welcome import Situation, advise

UP = Situation(cluster="c", is_up=True)


@pytest.mark.parametrize(
    ("found", "first", "command"),
    [
        (Situation(), "in no cluster", "ringleader init"),
        (Situation(cluster="c"), "but not up", "ringleader up"),
        (UP, "up in cluster c, alone", "ringleader invite"),
        (
            Situation(cluster="c", is_up=True, others=("desk", "studio")),
            "with desk, studio",
            "ringleader run",
        ),
        (
            Situation(cluster="c", is_up=True, others=("desk",), refusing=("desk",)),
            "with desk",
            "ringleader up --jobs",
        ),
        (
            Situation(cluster="c", is_up=True, others=("desk",), jobs=("mnist",)),
            "Running: mnist",
            "ringleader jobs",
        ),
    ],
)
def test_the_next_command_follows_from_the_situation(
    found: Situation, first: str, command: str
) -> None:
    lines = advise(found).splitlines()
    assert first in lines[0]
    shown = [line.split("  ")[1] for line in lines if line.startswith("  ")]
    assert shown[0].startswith(command) or command in " ".join(shown)
    assert all(words.split()[1] in SUMMARIES for words in shown), "they exist"


def test_troubles_come_with_the_advice() -> None:
    alone = Situation(cluster="c", is_up=True, troubles=("no discovery",))
    assert "! no discovery" in advise(alone).splitlines()
