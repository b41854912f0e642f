"""Whatever a stranger sends to any door, nothing is uncaught and no log grows.

``benchmarks/malformed_requests.py`` sends 100,000 to each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.doors import open_doors
from tests.kit.malformed_requests import send_all
from tests.kit.warm_python import WarmPython

COUNT = 250


@pytest.mark.skipif(sys.platform != "linux", reason="the kit forks commands")
def test_no_door_is_broken_by_malformed_requests(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    with open_doors(tmp_path, warm_python.popen) as doors:
        before = [each.log_bytes() for each in doors]
        for each in doors:
            tally = send_all(each.door, 0, COUNT)
            assert tally.refused == 0, each.door.name
            if each.door.protocol != "tls":
                assert tally.answered > COUNT // 20, "the requests came through"
            assert each.is_well(), each.door.name
            assert each.errors() == [], each.door.name
        for each, size in zip(doors, before, strict=True):
            assert each.log_bytes() - size < 1000, each.log.read_text()
