"""The user's own certificates on real machines, and what a wiretap sees."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringleader.settings.tls_files import TlsFiles
from ringleader.simulation.lan import VirtualLan, can_make_lan, lan
from tests.kit.certificates import TestCa
from tests.kit.machines import RINGLEADER, TORCHRUN, Machines
from tests.kit.warm_python import WarmPython

pytestmark = [
    pytest.mark.skipif(not can_make_lan()[0], reason=can_make_lan()[1]),
]

PATTERN = b"value-of-a-tensor-"
COPIES = 20_000
SEND = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
    out.sendto(sys.argv[1].encode(), (sys.argv[2], 9))
"""
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
def machines(
    net: VirtualLan, tmp_path: Path, warm_python: WarmPython
) -> Iterator[Machines]:
    """Machines that are in no cluster."""
    made = Machines(net, tmp_path, warm_python)
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
        _wait_until_written(net, file)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


def _wait_until_written(net: VirtualLan, file: Path) -> None:
    """Send a mark and wait for it: a busy machine writes frames late, but in order."""
    mark = secrets.token_hex(16)
    argv = [sys.executable, "-c", SEND, mark, net.hosts[1].address]
    subprocess.run(net.hosts[0].command(argv), check=True, timeout=300)
    until_s = time.monotonic() + 300
    while mark.encode() not in file.read_bytes():
        assert time.monotonic() < until_s, "the capture has stopped"
        time.sleep(0.1)


def certificates(machines: Machines, ca: TestCa) -> list[TlsFiles]:
    return [
        ca.files(machines.folder / f"tls{i}", host.address)
        for i, host in enumerate(machines.net.hosts)
    ]


def assert_unreadable(capture: Path) -> None:
    seen = capture.read_bytes()
    assert len(seen) > COPIES * len(PATTERN), "the tensor has passed here"
    assert PATTERN not in seen
    assert SCRIPT_NAME.encode() not in seen


@pytest.mark.slow
def test_a_wiretap_reads_nothing_of_a_run_with_certificates(machines: Machines) -> None:
    """ZF-9: coordinator, agents, store and tensors; no machine is in a cluster."""
    script, first = str(machines.folder / SCRIPT_NAME), machines.net.hosts[0].address
    files = certificates(machines, TestCa())
    homes = [str(machines.folder / f"empty{i}") for i in range(2)]
    with wiretap(machines.net, machines.folder / "run") as capture:
        serving = (*RINGLEADER, "coordinator", "--listen", f"{first}:7070")
        own = files[0].environment()
        machines.start(0, *serving, RINGLEADER_HOME=homes[0], **own)
        runs = []
        for i, own_files in enumerate(files):
            flags = ["--tls-ca", str(own_files.ca), "--tls-cert", str(own_files.cert)]
            flags += ["--tls-key", str(own_files.key), "--nodes", "2"]
            flags += ["--coordinator", f"{first}:7070", script]
            runs.append(machines.run(i, *flags, RINGLEADER_HOME=homes[i]))
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
            assert "sum 2.0 of 2" in "".join(run.lines)
    assert_unreadable(capture)


@pytest.mark.slow
def test_a_wiretap_reads_no_tensor_of_torchrun_with_certificates(
    machines: Machines,
) -> None:
    """ZF-9: worker to worker, by the environment alone; plain, the check can fail."""
    script, first = str(machines.folder / SCRIPT_NAME), machines.net.hosts[0].address
    files = certificates(machines, TestCa())
    with wiretap(machines.net, machines.folder / "torchrun") as capture:
        store = ("--master-addr", first, "--master-port", "29500", "--nnodes", "2")
        runs = [
            machines.start(
                i, *TORCHRUN, *store, "--node-rank", str(i), script, **own.environment()
            )
            for i, own in enumerate(files)
        ]
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
    assert_unreadable(capture)

    with wiretap(machines.net, machines.folder / "plain") as capture:
        runs = []
        for i in range(2):
            launched = {"RANK": str(i), "WORLD_SIZE": "2", "MASTER_ADDR": first}
            launched |= {"MASTER_PORT": "29501", "RINGLEADER_PLAINTEXT": "1"}
            runs.append(machines.start(i, sys.executable, script, **launched))
        for run in runs:
            assert run.end() == 0, "".join(run.lines)
    assert PATTERN in capture.read_bytes()
