"""The hostfile that MLX reads."""

from __future__ import annotations

import json

from ringleader.topology.mlx_hostfile import MlxHost, format_hostfile


def test_the_file_has_the_shape_that_mlx_reads() -> None:
    hosts = [MlxHost(f"mac{i}.local", f"192.168.1.{i}") for i in (1, 2)]
    assert json.loads(format_hostfile(hosts)) == [
        {"ssh": "mac1.local", "ips": ["192.168.1.1"]},
        {"ssh": "mac2.local", "ips": ["192.168.1.2"]},
    ]
