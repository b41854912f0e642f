"""One warm process for all tests here: importing what they need takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.scenario_worlds import ScenarioServer

HERE = Path(__file__).parent
BACKEND = "ringleader.backend.process_group"
"""Imported when the first group is formed, if nobody did it before."""


@pytest.fixture(scope="session")
def scenario_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ScenarioServer]:
    """Knows all scenarios, and the backend."""
    modules = [
        BACKEND,
        *sorted(f"tests.torch.{path.stem}" for path in HERE.glob("scenario_*.py")),
    ]
    with ScenarioServer(tmp_path_factory.mktemp("scenario_server"), modules) as made:
        yield made
