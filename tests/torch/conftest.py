"""One warm process for all tests here: importing what they need takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.stage import Stage

HERE = Path(__file__).parent
BACKEND = "ringleader.backend.process_group"
"""Imported when the first group is formed, if nobody did it before."""


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Knows all scenarios, and the backend."""
    modules = [
        BACKEND,
        *sorted(f"tests.torch.{path.stem}" for path in HERE.glob("scenario_*.py")),
    ]
    with Stage(tmp_path_factory.mktemp("stage"), modules) as made:
        yield made
