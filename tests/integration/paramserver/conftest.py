"""Commands as processes, for the tests of the parameter server."""

from __future__ import annotations

import pytest

from tests.kit.commands import Run, command_runner
from tests.kit.warm_python import WarmPython


@pytest.fixture
def running(warm_python: WarmPython) -> Run:
    return command_runner(warm_python)
