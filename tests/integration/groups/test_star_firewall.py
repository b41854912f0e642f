"""Workers behind firewalls: they reach one port of rank 0, and nobody reaches them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.warm_python import WarmPython

POSSIBLE, REASON = can_make_lan()
PORT = 29500
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], {port}), 1.0)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not POSSIBLE, reason=REASON),
]


def test_a_star_needs_one_port_of_rank_0_and_no_other(warm_python: WarmPython) -> None:
    tasks = [{"do": "describe"}, {"do": "time", "bytes": 1 << 20, "rounds": 2}]
    with lan(hosts=3) as net:
        root, *workers = net.hosts
        root.accept_only(PORT)
        for host in workers:
            host.accept_only(0)
        for to, port in ((root, PORT + 1), (workers[1], PORT)):
            knock = [sys.executable, "-c", KNOCK.format(port=port), to.address]
            process = workers[0].popen(knock, stderr=subprocess.PIPE, text=True)
            assert "timed out" in process.communicate(timeout=120)[1]
        peers = [f"{root.address}:{PORT}", "behind NAT", "behind another"]
        job = {"peers": peers, "tasks": tasks, "transport": "grpc"}
        ranks = [
            warm_python.popen(
                *("-m", "tests.kit.lan_worker", json.dumps({**job, "rank": rank})),
                namespace=host.name,
            )
            for rank, host in enumerate(net.hosts)
        ]
        outputs = [rank.communicate(timeout=400)[0] for rank in ranks]
    for text in outputs:
        links, timed = (json.loads(line) for line in text.splitlines())
        assert set(links["links"].values()) == {"grpc"}
        assert links["hosts"] == [0, 1, 2]
        assert timed["right"]
