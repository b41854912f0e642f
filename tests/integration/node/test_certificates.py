"""The user's own certificates on real machines, and what a wiretap sees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringleader.settings.tls_files import TlsFiles
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.certificates import TestCa
from tests.kit.machines import TORCHRUN, Machines

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
    pytest.mark.timeout(115),
]

PATTERN = b"value-of-a-tensor-"
COPIES = 20_000
SCRIPT_NAME = "private_research.py"
SCRIPT = f"""
import torch
import torch.distributed as dist

dist.init_process_group("ringleader")
data = torch.frombuffer(bytearray({PATTERN!r} * {COPIES}), dtype=torch.uint8)
mine = data.clone() if dist.get_rank() == 0 else torch.zeros_like(data)
dist.broadcast(mine, 0)
assert torch.equal(mine, data)
ones = torch.ones(1000)
dist.all_reduce(ones)
print(f"sum {{ones[0].item()}} of {{dist.get_world_size()}}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[VirtualLan]:
    with lan(hosts=2, rate="1gbit") as made:
        yield made


@pytest.fixture
def machines(net: VirtualLan, tmp_path: Path) -> Iterator[Machines]:
    """Machines that are in no cluster."""
    made = Machines(net, tmp_path)
    (tmp_path / SCRIPT_NAME).write_text(SCRIPT)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def wiretap(net: VirtualLan, file: Path) -> Iterator[Path]:
    """Capture all that the first machine sends and receives, on every port."""
    argv = [sys.executable, "-m", "tests.kit.packet_capture", "eth0", str(file)]
    process = net.hosts[0].popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "capturing\n"
    try:
        yield file
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def certificates(machines: Machines, ca: TestCa) -> list[TlsFiles]:
    return [
        ca.files(machines.folder / f"tls{i}", host.address)
        for i, host in enumerate(machines.net.hosts)
    ]


def by_hand(machines: Machines, index: int) -> dict[str, str]:
    """The environment that a launcher would set."""
    return {
        "RANK": str(index),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": machines.net.hosts[0].address,
        "MASTER_PORT": "29500",
        "RINGLEADER_HOME": str(machines.folder / f"empty{index}"),
    }


@pytest.mark.slow
def test_a_wiretap_reads_nothing_where_certificates_are_used(
    machines: Machines,
) -> None:
    """ZF-9: worker to worker, agents and the store of ``run``, with control runs."""
    script = str(machines.folder / SCRIPT_NAME)
    files = certificates(machines, TestCa())
    homes = [by_hand(machines, i)["RINGLEADER_HOME"] for i in range(2)]

    with wiretap(machines.net, machines.folder / "run") as run_capture:
        runs = []
        for i, own in enumerate(files):
            flags = ["--tls-ca", str(own.ca), "--tls-cert", str(own.cert)]
            flags += ["--tls-key", str(own.key), "--nodes", "2", script]
            runs.append(machines.run(i, *flags, RINGLEADER_HOME=homes[i]))
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
            assert "sum 2.0 of 2" in "".join(run.lines)

    with wiretap(machines.net, machines.folder / "torchrun") as torchrun_capture:
        first = machines.net.hosts[0].address
        store = ("--master-addr", first, "--master-port", "29500", "--nnodes", "2")
        runs = [
            machines.start(
                i, *TORCHRUN, *store, "--node-rank", str(i), script, **own.environment()
            )
            for i, own in enumerate(files)
        ]
        for run in runs:
            assert run.end() == 0, "".join(run.lines)

    with wiretap(machines.net, machines.folder / "plain") as plain_capture:
        variables = [
            {**by_hand(machines, i), "RINGLEADER_PLAINTEXT": "1"} for i in (0, 1)
        ]
        runs = [
            machines.start(i, sys.executable, script, **variables[i]) for i in (0, 1)
        ]
        for run in runs:
            assert run.end() == 0, "".join(run.lines)

    for capture in (run_capture, torchrun_capture):
        seen = capture.read_bytes()
        assert len(seen) > COPIES * len(PATTERN), "the tensor has passed here"
        assert PATTERN not in seen
        assert SCRIPT_NAME.encode() not in seen
    assert PATTERN in plain_capture.read_bytes(), "the check can fail"
