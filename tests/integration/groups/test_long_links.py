"""Groups over a network with a long round trip, with one and several connections."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ringleader.identity.cluster_secret import ClusterSecret, Secret
from ringleader.identity.credentials import Credentials
from ringleader.identity.node_key import NodeKey
from ringleader.simulation.lan import can_make_lan, lan, long_cable
from tests.kit.warm_python import WarmPython

POSSIBLE, REASON = can_make_lan()
ROUND_TRIP_S = 0.04
TIMED_BYTES = 1 << 20

pytestmark = pytest.mark.skipif(not POSSIBLE, reason=REASON)


@pytest.mark.parametrize(
    ("connections", "kind"), [(1, "tcp"), (4, "tcp x 4"), (4, "tls x 4")]
)
def test_sums_are_right_over_a_long_link(
    warm_python: WarmPython, tmp_path: Path, connections: int, kind: str
) -> None:
    cluster = ClusterSecret(root=Secret(os.urandom(32)))
    tasks = [{"do": "describe"}, {"do": "time", "bytes": TIMED_BYTES, "rounds": 2}]
    with (
        lan(hosts=2) as net,
        long_cable(*net.hosts, round_trip_s=ROUND_TRIP_S) as addresses,
    ):
        peers = [f"{address}:5100" for address in addresses]
        workers = []
        for rank, host in enumerate(net.hosts):
            job = {"rank": rank, "peers": peers, "tasks": tasks}
            job["connections"] = connections
            if kind.startswith("tls"):
                file = tmp_path / str(rank)
                Credentials.issue(cluster, NodeKey.ephemeral()).to_file(file)
                job["credentials"] = str(file)
            command = ("-m", "tests.kit.lan_worker", json.dumps(job))
            workers.append(warm_python.popen(*command, namespace=host.name))
        outputs = [worker.communicate(timeout=100)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    for rank, text in enumerate(outputs):
        described, timed = (json.loads(line) for line in text.splitlines())
        assert described["links"] == {str(1 - rank): kind}
        assert timed["right"]
        assert timed["seconds"] > ROUND_TRIP_S  # the bytes did not take another way
