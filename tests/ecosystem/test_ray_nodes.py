"""Ray's recipe on two nodes: hosts with a network between them, one CPU each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ringleader.simulation.lan import VirtualLan, can_make_lan, lan

RECIPE = Path(__file__).resolve().parents[2] / "examples/recipes/ray_train.py"
RAY = str(Path(sys.executable).parent / "ray")
PORT = 6379
WITHIN_S = 800.0

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]


@pytest.fixture
def net() -> Iterator[VirtualLan]:
    with lan(hosts=2) as made:
        yield made


def test_the_recipe_trains_on_two_nodes(net: VirtualLan) -> None:
    head = f"{net.hosts[0].address}:{PORT}"
    with TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # for short sockets
        env = {
            **os.environ,
            "HOME": folder,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_ADDRESS": head,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RINGLEADER_PLAINTEXT": "1",
            "OMP_NUM_THREADS": "1",
        }
        first = ("--head", f"--port={PORT}", "--include-dashboard=false")
        for host in net.hosts:
            place = first if host.number == 0 else (f"--address={head}",)
            own = (f"--node-ip-address={host.address}", "--num-cpus=1", "--block")
            memory = "--object-store-memory=100000000"
            temporary = (f"--temp-dir={folder}/ray",) if host.number == 0 else ()
            with Path(folder, f"node{host.number}.log").open("wb") as log:
                command = [RAY, "start", *place, *own, memory, *temporary]
                host.popen(command, env=env, stdout=log, stderr=log)
            wait_for_nodes(net, host.number + 1, env)
        done = subprocess.run(
            net.hosts[0].command([sys.executable, str(RECIPE)]),
            env=env,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )
        for host in net.hosts:
            host.kill_all()
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "2 processes, ringleader: accuracy 9" in said, said
    for host in net.hosts:  # a worker on each node
        assert f"ip={host.address}" in said, said


def wait_for_nodes(net: VirtualLan, count: int, env: dict[str, str]) -> None:
    """Wait until Ray counts ``count`` nodes that live."""
    program = (
        "import ray; ray.init(log_to_driver=False, logging_level='error');"
        "print(sum(n['Alive'] for n in ray.nodes()))"
    )
    command = net.hosts[0].command([sys.executable, "-c", program])
    until_s, said = time.monotonic() + WITHIN_S, ""
    while time.monotonic() < until_s:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.split()[-1:] == [str(count)]:
            return
        said = done.stdout + done.stderr
    raise AssertionError(f"Ray has not started: {said}")
