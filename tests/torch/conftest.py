"""One warm process for all tests here: importing what they need takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BACKEND = "ringleader.backend.process_group"
"""Imported when the first group is formed, if nobody did it before."""

sys.path.append(str(HERE))  # pytest's importlib mode leaves it out

from stage import Stage  # noqa: E402


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Knows all scenarios, and the backend."""
    modules = [BACKEND, *sorted(path.stem for path in HERE.glob("scenario_*.py"))]
    with Stage(tmp_path_factory.mktemp("stage"), modules) as made:
        yield made
