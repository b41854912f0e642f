"""Another backend inside real hosts, ours between them: processes in namespaces."""

from __future__ import annotations

import json

import pytest

from ringleader.simulation.lan import can_make_lan, lan
from tests.kit.warm_python import WarmPython

POSSIBLE, REASON = can_make_lan()


@pytest.mark.slow
@pytest.mark.skipif(not POSSIBLE, reason=REASON)
def test_three_ranks_of_one_host_and_one_of_another_agree(
    warm_python: WarmPython,
) -> None:
    """ZF-3, ZF-15: means over 3 + 1 ranks, and broadcasts from every one of them."""
    with lan(hosts=2) as net:
        places = [net.hosts[0]] * 3 + [net.hosts[1]]
        workers = []
        for rank, host in enumerate(places):
            job = {
                "rank": rank,
                "size": len(places),
                "store": f"tcp://{places[0].address}:5000",
                "address": host.address,
            }
            program = ("-m", "tests.kit.layer_worker", json.dumps(job))
            workers.append(warm_python.popen(*program, namespace=host.name))
        outputs = [worker.communicate(timeout=500)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(places)
    # Other lines are torch's warnings, and what its triton writes when a fork exits.
    told = [
        json.loads(line)
        for text in outputs
        for line in text.splitlines()
        if line.startswith("[[")
    ]
    assert told == [[[0, 1, 2], [3]]] * len(places)
