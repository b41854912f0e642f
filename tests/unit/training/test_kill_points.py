"""The points at which a test lets a process kill itself."""

from __future__ import annotations

import os
import signal

import pytest

from ringleader.errors import ConfigError
from ringleader.settings.kill_point import KillPoint, kill_point
from ringleader.training import kill_points


def test_the_variable_names_a_point_and_a_count() -> None:
    assert kill_point({}) is None
    assert kill_point({"RINGLEADER_KILL_AT": "rs:0@3"}) == KillPoint("rs:0", 3)
    for text in ("held", "@2", "held@", "held@0", "held@x"):
        with pytest.raises(ConfigError, match="NAME@TIMES"):
            kill_point({"RINGLEADER_KILL_AT": text})


def test_the_process_dies_when_it_reaches_the_point_that_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: kills.append((pid, number)))
    kill_points.arm(KillPoint("held", 2))
    try:
        kill_points.reach("held")
        kill_points.reach("applying")
        assert not kills
        kill_points.reach("held")
        assert kills == [(os.getpid(), signal.SIGKILL)]
    finally:
        kill_points.arm(None)
