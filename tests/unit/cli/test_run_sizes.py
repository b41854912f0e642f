"""How many machines begin a run, and with how many it goes on."""

from __future__ import annotations

import pytest

from ringleader.cli.run_options import sizes
from ringleader.errors import ConfigError


def test_a_run_that_survives_begins_with_all_and_goes_on_with_fewer() -> None:
    assert sizes(3, 1, None, survive=True) == (3, 3)
    with pytest.raises(ConfigError, match="--min-nodes 4 is more than --nodes 3"):
        sizes(3, 4, None, survive=True)
    with pytest.raises(ConfigError, match="but for --survive"):
        sizes(3, 1, None)
